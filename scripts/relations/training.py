"""Relations between answers to questions of training, in the form of those of serving."""

# Relations take the same three arguments, whichever they need.
# ruff: noqa: ARG001

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import trilemma as tl
from relations import serving
from relations.asking import Answers, Asked, Relation, Unasked, chosen, difference, figures
from trilemma.hardware.catalogue import find

MODELS = (
    "qwen3-0.6b", "qwen3-8b", "qwen3-32b", "llama-3.1-8b", "llama-3.1-70b", "llama-2-13b", "mixtral-8x7b", "gpt-oss-20b",
    "qwen3-30b-a3b", "glm-4.5-air", "deepseek-v3", "gemma-3-27b", "phi-4",
)  # fmt: skip
CARDS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm4-80gb", "a100-sxm4-40gb", "l40s", "rtx-4090", "mi300x")
RELATIONS: dict[str, Relation] = {}


def relation(check: Relation) -> Relation:
    RELATIONS[check.__name__.replace("_", " ")] = check
    return check


for _shared in ("lines sum to the byte", "low value high", "fits within the card", "probabilities are odds",
                "documents follow their schema"):  # fmt: skip
    RELATIONS[_shared] = serving.RELATIONS[_shared]


def draw(rng: random.Random) -> Asked:
    """A question that somebody might ask."""
    gpus, tp, pp = (
        rng.choice((1, 2, 4, 8, 8, 16, 32, 64, 128)),
        rng.choice((1, 1, 2, 4, 8)),
        rng.choice((1, 1, 1, 2, 4)),
    )
    options: dict[str, Any] = {
        "seq": rng.choice((512, 2048, 4096, 8192, 32768)),
        "global_batch": gpus * rng.choice((1, 2, 8)),
        "micro_batch": rng.choice((1, 1, 2, 4)),
    }
    if gpus % (tp * pp) == 0 and tp * pp > 1:
        options |= {name: degree for name, degree in (("tp", tp), ("pp", pp)) if degree > 1}
    chosen(rng, options, "recompute", 0.6, ("none", "selective", "full", "selective:core_attn,mlp", "full:4"))
    chosen(rng, options, "precision", 0.3, ("bf16", "fp8", "bf16-bf16-grads", "pure-bf16", "mxfp8", "fsdp", "amp"))
    chosen(rng, options, "zero", 0.4, (1, 2, 3))
    chosen(rng, options, "method", 0.25, ("lora", "qlora", "dora"))
    chosen(
        rng, options, "engine", 0.4, ("megatron", "torchtitan", "deepspeed", "transformers", "accelerate", "axolotl")
    )
    chosen(rng, options, "ep", 0.2, (2, 4, 8))
    chosen(rng, options, "cp", 0.1, (2, 4))
    chosen(rng, options, "optimizer", 0.15, ("muon", "adamw-8bit", "sgd", "adafactor"))
    chosen(rng, options, "offload", 0.12, ("optimizer", "optimizer=0.5", "activations", "weights", "optimizer,weights"))
    chosen(rng, options, "loss", 0.12, ("full", "chunked", "fused"))
    chosen(rng, options, "mlp_tiles", 0.05, (4,))
    chosen(rng, options, "dispatcher", 0.05, ("alltoall", "padded", "deepep"))
    chosen(rng, options, "cuda_graphs", 0.05, (True,))
    if options.get("pp", 1) > 1:
        chosen(rng, options, "vpp", 0.2, (2,))
        chosen(rng, options, "schedule", 0.2, ("1f1b", "gpipe", "interleaved", "zb-h1", "dualpipe"))
    return Asked(model=rng.choice(MODELS), card=rng.choice(CARDS), gpus=gpus, options=options)


def step_s(answer: tl.Estimate) -> float:
    if answer.speed is None or answer.speed.step_s is None:
        raise Unasked
    return answer.speed.step_s.interval.value


@relation
def no_mfu_above_one(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Nor a share of hardware FLOPs below that of the model's. Both count against BF16's peak: products in FP8 may double it."""
    speed = answer.speed
    if speed is None or speed.mfu is None or speed.hfu is None:
        raise Unasked
    peaks = find(question.card).peak_flops
    narrow = question.options.get("precision", "").startswith("fp8") and "fp8" in peaks
    most = peaks["fp8"].value / peaks["bf16"].value if narrow else 1.0
    held = speed.mfu.low >= 0 and max(speed.mfu.high, speed.hfu.high) <= most * (1 + 1e-9)
    full = question.options.get("method") is None
    held &= not full or speed.mfu.value <= speed.hfu.value * (1 + 1e-9)
    return None if held else f"MFU {speed.mfu}, HFU {speed.hfu}"


@relation
def more_replicas_never_more_memory_on_each(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if question.gpus == 1:
        raise Unasked  # two that talk have buffers that one has not
    batch = 2 * question.options["global_batch"]
    more = ask.variant(question.but(gpus=2 * question.gpus, global_batch=batch))
    a, b = answer.memory.total.value, more.memory.total.value
    return None if b <= a else f"{a / 2**30:.3f} GiB, {b / 2**30:.3f} on twice as many cards"


@relation
def larger_micro_batches_never_less_memory(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    micro, batch = question.options["micro_batch"], question.options["global_batch"]
    more = ask.variant(question.but(micro_batch=2 * micro, global_batch=2 * batch))
    a, b = answer.memory.total.value, more.memory.total.value
    return None if b >= a else f"{a / 2**30:.3f} GiB, {b / 2**30:.3f} at twice the micro-batch"


@relation
def recompute_never_more_memory_nor_faster(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if "activations" in question.options.get("offload", ""):
        raise Unasked  # what is computed again is not moved to the host and back
    none, full = (ask.variant(question.but(recompute=what)) for what in ("none", "full"))
    a, b = none.memory.total.value, full.memory.total.value
    if b > a:
        return f"{a / 2**30:.3f} GiB without recompute, {b / 2**30:.3f} with"
    a, b = step_s(none), step_s(full)
    return f"{a:.5g} s without recompute, {b:.5g} with" if b < a * (1 - 1e-9) else None


@relation
def longer_batches_take_longer(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    more = ask.variant(question.but(global_batch=2 * question.options["global_batch"]))
    a, b = step_s(answer), step_s(more)
    return None if a <= b <= 2 * a * (1 + 1e-9) else f"{a:.5g} s, {b:.5g} for twice the batch"


def totals(question: Asked, ask: Answers, name: str, values: tuple[Any, ...]) -> list[float]:
    """Bytes on a card with each of ``values`` of the option ``name``."""
    return [ask.variant(question.but(**{name: value})).memory.total.value for value in values]


def no_more(sizes: list[float], words: str) -> str | None:
    """What is wrong where a later size is larger than the one before."""
    grown = [(a, b) for a, b in pairwise(sizes) if b > a * (1 + 1e-9)]
    return f"{grown[0][0] / 2**30:.3f} GiB, {grown[0][1] / 2**30:.3f} {words}" if grown else None


@relation
def sharding_never_more_state(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Of parameters, gradients and moments; what is gathered for a layer stands beside them."""
    levels = [ask.variant(question.but(zero=level)).memory.ledger for level in (1, 2, 3)]
    states = [sum(float(line.bytes) for line in one if line.name in _STATE) for one in levels]
    return no_more(states, "sharded further")


_STATE = ("weights", "gradients", "optimizer", "master_weights", "optimizer_states", "moments")


@relation
def longer_sequences_take_more(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    longer = ask.variant(question.but(seq=2 * question.options["seq"]))
    a, b = answer.memory.total.value, longer.memory.total.value
    if b < a:
        return f"{a / 2**30:.3f} GiB, {b / 2**30:.3f} of sequences twice as long"
    a, b = step_s(answer), step_s(longer)
    return f"{a:.5g} s, {b:.5g} of sequences twice as long" if b < a * (1 - 1e-9) else None


@relation
def adapters_never_more_than_all(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Nor a larger rank less than a smaller one."""
    if question.options.get("method") is None:
        raise Unasked
    small, large = totals(question, ask, "rank", (8, 64))
    if large < small:
        return f"{small / 2**30:.3f} GiB at rank 8, {large / 2**30:.3f} at rank 64"
    whole = ask.variant(question.but(method=None, engine=answer.question.plan.implementation)).memory.total.value
    return no_more([whole, small], "of adapters") if question.options["method"] == "lora" else None


@relation
def offload_never_more_memory_nor_faster(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    part = question.options.get("offload", "optimizer")
    here, away = (ask.variant(question.but(offload=what)) for what in (None, part))
    a, b = here.memory.total.value, away.memory.total.value
    if b > a * (1 + 1e-9):
        return f"{a / 2**30:.3f} GiB, {b / 2**30:.3f} with {part} on the host"
    a, b = step_s(here), step_s(away)
    return f"{a:.5g} s, {b:.5g} with {part} on the host" if b < a * (1 - 1e-9) else None


def steps_never_longer(question: Asked, ask: Answers, name: str, values: tuple[Any, ...], words: str) -> str | None:
    steps = [step_s(ask.variant(question.but(**{name: value}))) for value in values]
    longer = [(a, b) for a, b in pairwise(steps) if b > a * (1 + 1e-6)]
    return f"{longer[0][0]:.6g} s, {longer[0][1]:.6g} {words}" if longer else None


@relation
def wider_networks_never_slower(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if answer.question.cluster.nodes < 2:
        raise Unasked
    return steps_never_longer(question, ask, "network", ("25GbE", "100GbE", "8x400Gb/s"), "over a wider network")


@relation
def higher_caps_never_slower(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    limit = find(question.card).tdp_w
    if limit is None:
        raise Unasked
    caps = (*(round(limit.value * share) for share in (0.6, 0.8)), None)
    return steps_never_longer(question, ask, "power_cap", caps, "under a higher cap")


@relation
def more_of_the_card_never_slower(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    card = find(question.card)
    wide = replace(
        card, bandwidth_bytes_per_s=replace(card.bandwidth_bytes_per_s, value=1.5 * card.bandwidth_bytes_per_s.value)
    )
    peaks = {name: replace(one, value=one.value * 1.5) for name, one in card.peak_flops.items()}
    before, *others = (
        step_s(found) if (found := ask(question, tl.Cluster.of(one, question.gpus))) is not None else None
        for one in (card, wide, replace(card, peak_flops=peaks))
    )
    if before is None or None in others:
        raise Unasked
    slower = [after for after in others if after is not None and after > before * (1 + 1e-6)]
    return f"{before:.6g} s, {slower[0]:.6g} with more bandwidth or arithmetic" if slower else None


@relation
def best_plan_asked_again(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """The first plan of a search, asked of `fit`: the same memory and time."""
    ask.asked += 2
    told = {name: question.options[name] for name in ("seq", "global_batch")}
    try:
        best = tl.train(question.model, question.cards, **told).best
    except tl.InputError:
        raise Unasked from None
    if best is None:
        raise Unasked
    return difference(figures(best), figures(tl.fit(best.question)))
