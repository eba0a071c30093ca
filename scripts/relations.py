#!/usr/bin/env python3
"""Relations that hold between answers, whatever is asked: random serving questions, seeded, each held to several.

    python scripts/relations.py 20000 [--seed 1] [--only NAME]

Counts questions asked (variants of one too), and how often each relation was tried and broken, with the shortest question that
breaks it. Exit 1 when any is broken. A relation takes a question and its answer and gives what is wrong, or None.
"""

# Relations take the same three arguments, whichever they need.
# ruff: noqa: ARG001

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import trilemma as tl
from trilemma.hardware.catalogue import find
from trilemma.report.schemas import schema_of

MODELS = (
    "qwen3-0.6b", "qwen3-8b", "qwen3-32b", "llama-3.1-8b", "llama-3.1-70b", "llama-2-13b", "mixtral-8x7b", "gpt-oss-20b",
    "gpt-oss-120b", "qwen3-30b-a3b", "glm-4.5-air", "deepseek-v3", "gemma-3-27b", "devstral-small-24b",
    "deepseek-r1-distill-qwen-14b", "llama-4-scout", "qwen3-next-80b-a3b", "phi-4",
)  # fmt: skip
CARDS = (
    "h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm4-80gb", "a100-sxm4-40gb", "l40s", "l4", "a10", "rtx-4090", "rtx-5090",
    "rtx-pro-6000-blackwell", "h100-nvl-94gb", "mi300x",
)  # fmt: skip
ENGINES = ("vllm", "vllm", "sglang", "tensorrt-llm", "llama.cpp")


@dataclass(frozen=True)
class Asked:
    """One question: keywords of `trilemma.fit`, ``card`` and ``gpus`` apart, and what was asked of it so far."""

    model: str
    card: str
    gpus: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def but(self, *, gpus: int | None = None, **options: Any) -> Asked:
        kept = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        return replace(self, gpus=gpus or self.gpus, options=kept)

    def __str__(self) -> str:
        words = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            for name, value in self.options.items()
        ]
        return f"fit {self.model} --gpu {self.card}:{self.gpus} {' '.join(words)}"


class Answers:
    """Asks, and counts how often."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, question: Asked, card: Any = None) -> tl.Estimate | None:
        """The answer; None where the layout or the engine cannot be."""
        self.asked += 1
        gpu = f"{question.card}:{question.gpus}" if card is None else tl.Cluster.of(card, question.gpus)
        try:
            return tl.fit(question.model, gpu, **question.options)
        except tl.InputError:
            return None


Relation = Callable[[Asked, tl.Estimate, Answers], str | None]
RELATIONS: dict[str, Relation] = {}


def relation(check: Relation) -> Relation:
    RELATIONS[check.__name__.replace("_", " ")] = check
    return check


def draw(rng: random.Random) -> Asked:
    """A question that somebody might ask."""
    engine = rng.choice(ENGINES)
    options: dict[str, Any] = {
        "isl": rng.choice((64, 128, 500, 1024, 2048, 4096, 16000, 32000)),
        "osl": rng.choice((2, 16, 64, 128, 512, 1024, 2048)),
        "concurrency": rng.choice((1, 2, 4, 8, 16, 64, 128, 256, 512)),
    }
    if engine != "vllm" or rng.random() < 0.3:
        options["engine"] = engine
    gpus = rng.choice((1, 1, 2, 2, 4, 8, 16))
    precision = rng.choice((None, None, "fp8", "nvfp4", "bf16", "int4")) if engine != "llama.cpp" else "Q4_K_M"
    if precision is not None:
        options["precision"] = precision
    if rng.random() < 0.4 and gpus > 1:
        tp = rng.choice([one for one in (1, 2, 4, 8) if gpus % one == 0])
        options["tp"] = tp
        if gpus > tp:
            options[rng.choice(("pp", "pp", "dp"))] = gpus // tp
    if rng.random() < 0.2:
        options["max_seqs"] = rng.choice((8, 32, 256, 512))
    if rng.random() < 0.2:
        options["max_batched_tokens"] = rng.choice((1024, 2048, 8192))
    if rng.random() < 0.2 and engine != "llama.cpp":
        options["memory_fraction"] = rng.choice((0.8, 0.85, 0.95))
    if rng.random() < 0.1 and engine != "llama.cpp":
        options["eager"] = True
    return Asked(model=rng.choice(MODELS), card=rng.choice(CARDS), gpus=gpus, options=options)


def tokens_per_s(answer: tl.Estimate) -> float | None:
    speed = answer.speed
    return None if speed is None or speed.output_tokens_per_s is None else speed.output_tokens_per_s.value


def replicas(answer: tl.Estimate) -> int:
    pool = answer.question.plan.pool
    return int(pool.replicas) * int(pool.layout.dp)


def weights(answer: tl.Estimate) -> float:
    return float(answer.memory.ledger["weights"].bytes)


@relation
def lines_sum_to_the_byte(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    memory = answer.to_dict()["memory"]
    over = sum(line["bytes"] for line in memory["items"]) - memory["total_bytes"]
    headroom = memory["capacity_bytes"] - memory["total_bytes"] - memory["headroom_bytes"]
    return f"{over:+d} bytes, headroom {headroom:+d}" if over or headroom else None


@relation
def low_value_high(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    def walk(node: Any, where: str) -> str | None:
        if isinstance(node, dict):
            if {"low", "value", "high"} <= node.keys() and not node["low"] <= node["value"] <= node["high"]:
                return f"{where}: {node['low']} {node['value']} {node['high']}"
            for key, value in node.items():
                low, high = node.get(key.replace("bytes", "low_bytes")), node.get(key.replace("bytes", "high_bytes"))
                named = key.endswith("bytes") and key.replace("bytes", "low_bytes") in node and "low" not in key
                if named and not low <= value <= high:
                    return f"{where}.{key}: {low} {value} {high}"
        inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        return next((found for key, value in inner if (found := walk(value, f"{where}.{key}"))), None)

    return walk(answer.to_dict(), "")


@relation
def fits_within_the_card(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    memory = answer.memory
    if answer.fits and memory.total.value > memory.capacity_bytes:
        return f"fits with {memory.total.value / 2**30:.2f} of {memory.capacity_bytes / 2**30:.2f} GiB"
    return None


@relation
def probabilities_are_odds(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    sure = answer.verdict.probability
    return None if 0.5 <= sure <= 1 else f"verdict {answer.verdict.stage} with {sure}"


@relation
def littles_law(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Requests in flight are the rate at which they end times the time each takes; where few more are asked than run, what a
    free slot saves is not in both yet, and they may part by a tenth."""
    rate, speed = tokens_per_s(answer), answer.speed
    if rate is None or speed is None or speed.request_s is None:
        return None
    flying = rate / question.options["osl"] * speed.request_s.interval.value
    over = flying / question.options["concurrency"]
    return (
        None
        if 0.98 <= over <= 1.02
        else f"{flying:.4g} in flight by rate and time, {question.options['concurrency']} asked"
    )


@relation
def documents_follow_their_schema(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    found = next(_validator().iter_errors(answer.to_dict()), None)
    return None if found is None else str(found.message)[:200]


@cache
def _validator() -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(schema_of("estimate"))


@relation
def longer_contexts_need_no_fewer_bytes(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """One request of full context never needs fewer bytes when it is longer. The bytes of one more token may fall: windows that
    are full take nothing more."""
    twice = ask(question.but(context=2 * (answer.context or 1), max_batched_tokens=answer_batch(answer)))
    here = ask(question.but(context=answer.context, max_batched_tokens=answer_batch(answer)))
    if twice is None or here is None or here.uses_host != twice.uses_host or twice.uses_host:
        return None  # layers that make room on the card take their cache with them
    one, two = need_bytes(here), need_bytes(twice)
    if two < one * (1 - 1e-3):
        return f"{one:.6g} bytes for a request of {here.context}, {two:.6g} of {twice.context}"
    rates = [a.cache.bytes_per_token if a.cache else 0 for a in (here, twice)]
    windows = any(mixer.label != "full" for mixer in here.question.model.mixers)
    return (
        f"{rates[0]:g} bytes a token, {rates[1]:g} when longer"
        if rates[1] < rates[0] * (1 - 1e-9) and not windows
        else None
    )


def answer_batch(answer: tl.Estimate) -> int | None:
    """Batched tokens pinned where the question leaves them open: engines derive them from the context."""
    given = answer.question.plan.pool.options.max_batched_tokens
    return 2048 if given is None else int(given)


def need_bytes(answer: tl.Estimate) -> float:
    return float(answer.start_up["needed_for_one_request_gib"]) * 2**30


def _doubled(question: Asked, ask: Answers) -> tl.Estimate | None:
    """Twice the GPUs: the degree that is stated doubled, tensor before pipeline."""
    by = next((name for name in ("tp", "pp", "dp") if name in question.options), None)
    more = {} if by is None else {by: 2 * question.options[by]}
    return ask(question.but(gpus=2 * question.gpus, **more))


@relation
def more_gpus_never_more_weights_on_each(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Where nothing lies on the host: an engine that spills takes what more cards have room for."""
    more = _doubled(question, ask)
    if more is None or answer.uses_host or weights(more) <= weights(answer) * (1 + 1e-9):
        return None
    return f"{weights(answer) / 2**30:.3f} GiB on each of {question.gpus}, {weights(more) / 2**30:.3f} on twice as many"


@relation
def more_gpus_never_fewer_cache_tokens(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """While heads are left to share: ranks beyond the KV heads hold copies, and buffers of more ranks cost memory."""
    more = _doubled(question, ask)
    if more is None or not (answer.cache and more.cache) or not answer.fits:
        return None
    if more.cache.bytes_per_token > answer.cache.bytes_per_token:
        return None
    one, two = answer.cache.tokens.value, more.cache.tokens.value
    return f"{one:,.0f} tokens on {question.gpus}, {two:,.0f} on twice as many" if two < one * (1 - 1e-6) else None


@relation
def more_gpus_never_turn_yes_into_no(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if not answer.fits:
        return None
    """But by an engine's own choice of its share of the card (SGLang's grows with fewer batched tokens and more ranks)."""
    more = _doubled(question, ask)
    if more is not None and more.start_up.get("memory_fraction") != answer.start_up.get("memory_fraction"):
        return None
    return None if more is None or more.fits else f"fits on {question.gpus}, {more.verdict.stage} on twice as many"


@relation
def fewer_bits_never_heavier(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Of a whole checkpoint; a rank may hold more of what a scheme leaves wide."""
    if question.options.get("engine") == "llama.cpp":
        return None
    found = [ask(question.but(precision=name)) for name in ("nvfp4", "fp8", "bf16")]
    sizes = [float(sum(tensor.bytes for tensor in one.question.model.tensors)) for one in found if one is not None]
    return (
        None if sizes == sorted(sizes) else f"NVFP4, FP8, BF16: {', '.join(f'{one / 2**30:.3f}' for one in sizes)} GiB"
    )


@relation
def idle_replicas_never_help(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """Beyond one replica a request more of them add nothing."""
    load = question.options["concurrency"]
    if load > 8 or "dp" in question.options:
        return None
    alone = question.but(tp=question.options.get("tp", 1), pp=question.options.get("pp", 1))
    size = alone.options["tp"] * alone.options["pp"]
    one, two = (ask(alone.but(gpus=size * count, replicas=count)) for count in (load, 2 * load))
    if one is None or two is None:
        return None
    a, b = tokens_per_s(one), tokens_per_s(two)
    return f"{a:.5g} tok/s on {load} replicas, {b:.5g} on twice as many" if a and b and b > a * 1.001 else None


@relation
def more_bandwidth_never_slower(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    card = find(question.card)
    figure = card.bandwidth_bytes_per_s
    wide = replace(card, bandwidth_bytes_per_s=replace(figure, value=figure.value * 1.5))
    here, more = ask(question, card), ask(question, wide)
    if here is None or more is None:
        return None
    a, b = tokens_per_s(here), tokens_per_s(more)
    return f"{a:.5g} tok/s, {b:.5g} with half as much bandwidth again" if a and b and b < a * (1 - 1e-6) else None


@relation
def more_requests_never_fewer_tokens(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    more = ask(question.but(concurrency=2 * question.options["concurrency"]))
    a, b = tokens_per_s(answer), None if more is None else tokens_per_s(more)
    return f"{a:.5g} tok/s, {b:.5g} with twice the requests" if a and b and b < a * 0.999 else None


@relation
def its_command_checked_gives_the_same(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if answer.command is None:
        return None
    ask.asked += 1
    try:
        again = tl.check(answer.command, gpu=f"{question.card}:{question.gpus}")
    except tl.InputError as error:
        return (
            None
            if any(words in str(error) for words in ("does not exist", "is not here", "is not a file"))
            else f"refused: {error}"
        )
    if again.question.model.name != answer.question.model.name or weights(again) != weights(answer):
        return None  # a checkpoint that is still to be converted has no name
    a, b = answer.memory.total.value, again.memory.total.value
    if a != b or answer.verdict.stage != again.verdict.stage:
        return f"{a:.0f} bytes, {answer.verdict.stage}; checked {b:.0f}, {again.verdict.stage}: {answer.command}"
    return None


@relation
def no_upgrade_from_itself(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    if answer.command is None:
        return None
    ask.asked += 2
    try:
        found = tl.upgrade(
            answer.command, gpu=f"{question.card}:{question.gpus}", old=answer.version, new=answer.version
        )
    except tl.InputError:
        return None
    moved = found.to_dict()
    changed = [key for key in ("rules", "flags", "changes", "lines") if _moves(moved.get(key))]
    return f"{', '.join(changed)} change" if changed else None


def _moves(part: Any) -> bool:
    rows = part if isinstance(part, list) else []
    return any(not isinstance(row, dict) or row.get("before") != row.get("after") for row in rows)


@relation
def best_plan_asked_again(question: Asked, answer: tl.Estimate, ask: Answers) -> str | None:
    """The first plan of a search, its plan asked of `fit`: the same memory and speed."""
    load = {name: question.options[name] for name in ("isl", "osl", "concurrency")}
    try:
        engine = question.options.get("engine", "vllm")
        best = tl.plan(question.model, f"{question.card}:{question.gpus}", **load, engine=engine).best
    except tl.InputError:
        return None
    ask.asked += 1
    if best is None:
        return None
    again = tl.fit(best.question)
    same = again.memory.total.value == best.memory.total.value and tokens_per_s(again) == tokens_per_s(best)
    return None if same else f"{best.summary}: {tokens_per_s(best)} tok/s, {tokens_per_s(again)} when asked"


#: Relations that ask a search: tried once in this many questions.
RARE = {"best plan asked again": 40, "no upgrade from itself": 10, "documents follow their schema": 5}


def run(
    number: int, *, seed: int = 1, only: str | None = None, each: int = 2
) -> dict[str, tuple[int, list[tuple[str, str]]]]:
    """Ask ``number`` questions; relation → (times tried, [(question, what is wrong)])."""
    rng, ask = random.Random(seed), Answers()
    found: dict[str, tuple[int, list[tuple[str, str]]]] = {name: (0, []) for name in RELATIONS}
    names = [only] if only else list(RELATIONS)
    cheap = [name for name in names if name in list(RELATIONS)[:5]]
    while ask.asked < number:
        question = draw(rng)
        answer = ask(question)
        if answer is None:
            continue
        others = [name for name in names if name not in cheap and rng.random() < 1 / RARE.get(name, 1)]
        for name in (*cheap, *rng.sample(others, min(each, len(others)))):
            tried, broken = found[name]
            wrong = RELATIONS[name](question, answer, ask)
            if wrong is not None:
                broken.append((str(question), wrong))
            found[name] = (tried + 1, broken)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(RELATIONS))
    given, start = parser.parse_args(), time.time()
    found = run(given.number, seed=given.seed, only=given.only)
    broken = 0
    for name, (tried, wrong) in found.items():
        broken += len(wrong)
        print(f"{name}: {len(wrong)} of {tried} broken")
        for question, why in sorted(wrong, key=lambda one: len(one[0]))[:3]:
            print(f"    {question}\n        {why}")
    print(f"{given.number} questions, {broken} broken, {time.time() - start:.0f} s")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
