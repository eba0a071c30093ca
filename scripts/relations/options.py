"""Relations of what a question may state beside its load: drafts, images, formats of the cache, caps, hosts, networks, rates."""

# Relations take the same three arguments, whichever they need.
# ruff: noqa: ARG001

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import trilemma as tl
from relations.asking import Answers, Asked, Relation, Unasked, slots_stated, tokens_per_s
from trilemma.hardware.catalogue import find

RELATIONS: dict[str, Relation] = {}
_HAIR = 1e-6
#: Formats of a cache of half as many bits, by engine; others take "fp8".
_HALF_CACHE = {"llama.cpp": "q8_0", "ollama": "q8_0", "lm-studio": None, "mlx-lm": None, "lmdeploy": "int8"}


def relation(check: Relation) -> Relation:
    RELATIONS[check.__name__.replace("_", " ")] = check
    return check


def rising(question: Asked, ask: Answers, name: str, values: tuple[Any, ...]) -> list[tl.Estimate]:
    """The answers with each of ``values`` of the option ``name``."""
    return [ask.variant(question.but(**{name: value})) for value in values]


def never_slower(answers: list[tl.Estimate], words: str) -> str | None:
    """What is wrong where a later one makes fewer tokens than the one before."""
    rates = [tokens_per_s(answer) for answer in answers]
    fallen = [(a, b) for a, b in pairwise(rates) if b < a * (1 - _HAIR)]
    return f"{fallen[0][0]:.6g} tok/s, {fallen[0][1]:.6g} {words}" if fallen else None


def cache_tokens(answer: tl.Estimate) -> float:
    if answer.cache is None:
        raise Unasked
    return float(answer.cache.tokens.value)


@relation
def narrower_caches_hold_no_fewer_tokens(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    narrow = _HALF_CACHE.get(question.options.get("engine", "vllm"), "fp8")
    if narrow is None or answer.uses_host:
        raise Unasked
    question = slots_stated(question.but(kv_dtype=None), answer)
    wide, half = (cache_tokens(ask.variant(question.but(kv_dtype=name))) for name in (None, narrow))
    return f"{wide:,.0f} tokens in 16 bits, {half:,.0f} in {narrow}" if half < wide * (1 - _HAIR) else None


@relation
def drafts_leave_no_more_cache_and_better_ones_are_no_slower(
    question: Asked, answer: tl.Estimate, ask: Answers
) -> str | None:
    method = str(question.options.get("draft", "mtp:2")).split(":")[0]
    question = slots_stated(question.but(draft=None), answer)
    without = ask.variant(question)
    some, better = rising(question, ask, "draft", (f"{method}:2:0.4", f"{method}:2:0.8"))
    graphs = [float(line.bytes) if (line := one.memory.ledger.get("cuda_graphs")) else 0.0 for one in (without, some)]
    if graphs[1] < graphs[0]:
        raise Unasked  # an engine that captures fewer batches beside drafts has more room
    if not (without.uses_host or some.uses_host) and cache_tokens(some) > cache_tokens(without) * (1 + _HAIR):
        return f"{cache_tokens(without):,.0f} tokens without drafts, {cache_tokens(some):,.0f} beside them"
    return never_slower([some, better], "with twice as many drafts accepted")


@relation
def lower_caps_never_faster(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    limit = find(question.card).tdp_w
    if limit is None:
        raise Unasked
    capped = [round(limit.value * share) for share in (0.6, 0.8)]
    return never_slower(rising(question, ask, "power_cap", (*capped, None)), "under a higher cap")


@relation
def more_images_never_sooner(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    one, four = rising(question, ask, "images", (1, 4))
    if not (one.speed and one.speed.ttft_s and four.speed and four.speed.ttft_s):
        raise Unasked
    first = [told.speed.ttft_s.interval.value for told in (one, four) if told.speed and told.speed.ttft_s]
    return f"first token after {first[0]:.5g} s, {first[1]:.5g} with four images" if first[1] < first[0] else None


@relation
def half_of_the_rate_is_kept_up_with(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Requests that come half as often as they can be answered: all of them are, and none waits longer for its tokens."""
    osl, most = question.options["osl"], tokens_per_s(answer)
    rate = most / osl / 2
    found = ask.variant(slots_stated(question, answer).but(concurrency=None, rate=rate))
    made = tokens_per_s(found)
    if abs(made / (rate * osl) - 1) > _HAIR:
        return f"{rate * osl:.6g} tok/s are asked for, {made:.6g} made, {most:.6g} can be"
    return None


@relation
def wider_networks_never_slower(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if answer.question.cluster.nodes < 2:
        raise Unasked
    return never_slower(rising(question, ask, "network", ("25GbE", "100GbE", "8x400Gb/s")), "over a wider network")


@relation
def faster_hosts_never_slower(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if not answer.uses_host:
        raise Unasked
    question = slots_stated(question, answer)
    return never_slower(rising(question, ask, "host", ("25", "100", "400")), "with a faster host")


@relation
def samplers_that_do_more_never_faster(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    question = slots_stated(question, answer)
    return never_slower(rising(question, ask, "sampling", ("penalized", "filtered", "greedy")), "with less to sample")


@relation
def more_arithmetic_never_slower(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    card, question = find(question.card), slots_stated(question, answer)
    faster = replace(
        card, peak_flops={name: replace(one, value=one.value * 1.5) for name, one in card.peak_flops.items()}
    )
    pair = [ask.variant(question, tl.Cluster.of(one, question.gpus)) for one in (card, faster)]
    return never_slower(pair, "with half as much arithmetic again")


#: Engine → (flags, "less" or "more": what they leave of the cache).
_FLAGS = {
    "vllm": (("--enable-lora --max-loras 4 --max-lora-rank 64", "less"), ("--cpu-offload-gb 2", "more"),
             ("--swap-space 8", "same"), ("--kv-offloading-size 16", "same")),
    "sglang": (("--enable-lora --lora-paths a=b --max-lora-rank 64 --max-loras-per-batch 4", "less"),
               ("--cpu-offload-gb 2", "more"), ("--enable-hierarchical-cache --hicache-size 16", "less")),
    "llama.cpp": (("--no-kv-offload", "same"), ("--no-mmap", "same"), ("--mlock", "same")),
}  # fmt: skip


@relation
def flags_of_memory_leave_what_they_must(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Adapters take room from the cache, weights on the host give some; what lies elsewhere changes none of it."""
    flags = _FLAGS.get(answer.question.plan.engine.name)
    if flags is None or answer.command is None or answer.refused or answer.question.checkpoint is not None:
        raise Unasked
    if len(answer.commands) > 1 or answer.question.plan.pool.replicas > 1 or ".yaml" in answer.command:
        raise Unasked
    words, what = flags[len(str(question)) % len(flags)]
    load = answer.question.workload
    told = {"isl": load.isl, "osl": load.osl, "concurrency": load.concurrency, "prefix_hit": load.prefix_hit}
    ask.asked += 2
    try:
        plain, flagged = (
            tl.check(command, gpu=question.cards, **told) for command in (answer.command, f"{answer.command} {words}")
        )
    except tl.InputError:
        raise Unasked from None
    if not (plain.cache and flagged.cache):
        raise Unasked
    a, b = plain.cache.tokens.value, flagged.cache.tokens.value
    held = {"less": b <= a * (1 + _HAIR), "more": b >= a * (1 - _HAIR), "same": abs(b - a) <= a * _HAIR}[what]
    return None if held else f"{a:,.0f} tokens, {b:,.0f} with {words}: {answer.command}"
