"""Relations between answers to questions of training, in the form of those of serving."""

# Relations take the same three arguments, whichever they need.
# ruff: noqa: ARG001

from __future__ import annotations

import random
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
    chosen(rng, options, "recompute", 0.6, ("none", "selective", "full"))
    chosen(rng, options, "precision", 0.3, ("bf16", "fp8", "bf16-bf16-grads", "pure-bf16"))
    chosen(rng, options, "zero", 0.4, (1, 2, 3))
    chosen(rng, options, "method", 0.25, ("lora", "qlora"))
    chosen(rng, options, "engine", 0.4, ("megatron", "torchtitan", "deepspeed", "transformers"))
    chosen(rng, options, "ep", 0.15, (2, 4, 8))
    chosen(rng, options, "optimizer", 0.15, ("muon", "adamw-8bit", "sgd"))
    return Asked(model=rng.choice(MODELS), card=rng.choice(CARDS), gpus=gpus, options=options)


def step_s(answer: tl.Estimate) -> float:
    if answer.speed is None or answer.speed.step_s is None:
        raise Unasked
    return answer.speed.step_s.interval.value


def asked(question: Asked, ask: Answers) -> tl.Estimate:
    found = ask(question)
    if found is None:
        raise Unasked
    return found


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
    more = asked(question.but(gpus=2 * question.gpus, global_batch=batch), ask)
    a, b = answer.memory.total.value, more.memory.total.value
    return None if b <= a else f"{a / 2**30:.3f} GiB, {b / 2**30:.3f} on twice as many cards"


@relation
def larger_micro_batches_never_less_memory(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    micro, batch = question.options["micro_batch"], question.options["global_batch"]
    more = asked(question.but(micro_batch=2 * micro, global_batch=2 * batch), ask)
    a, b = answer.memory.total.value, more.memory.total.value
    return None if b >= a else f"{a / 2**30:.3f} GiB, {b / 2**30:.3f} at twice the micro-batch"


@relation
def recompute_never_more_memory_nor_faster(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    none, full = (asked(question.but(recompute=what), ask) for what in ("none", "full"))
    a, b = none.memory.total.value, full.memory.total.value
    if b > a:
        return f"{a / 2**30:.3f} GiB without recompute, {b / 2**30:.3f} with"
    a, b = step_s(none), step_s(full)
    return f"{a:.5g} s without recompute, {b:.5g} with" if b < a * (1 - 1e-9) else None


@relation
def longer_batches_take_longer(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    more = asked(question.but(global_batch=2 * question.options["global_batch"]), ask)
    a, b = step_s(answer), step_s(more)
    return None if a <= b <= 2 * a * (1 + 1e-9) else f"{a:.5g} s, {b:.5g} for twice the batch"


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
