"""Every range of speed says whose runs it stands on, holds its figure in the middle, and no side of it is forgotten."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import fields
from typing import Any

import pytest

import trilemma as tl
from trilemma.estimate.estimate import Latency
from trilemma.intervals import Interval
from trilemma.timing.distance import DISTANCES
from trilemma.timing.intervals import OF_DATASHEETS, OF_POOLS
from trilemma.timing.serving_terms import shipped

MODELS = ("llama-3.1-8b", "qwen3-32b", "gpt-oss-20b", "qwen3-30b-a3b", "llama-3.1-70b-fp8", "deepseek-v3")
CARDS = ("h100-sxm:8", "b200-sxm:8", "mi300x:8", "mi250x:8", "rtx-4090:2", "l40s:4", "a100-sxm-80gb:8", "m4-max")
ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")


def figures_of(answer: Any) -> dict[str, Interval]:
    found: dict[str, Interval] = {}
    assert answer.speed is not None
    for one in fields(answer.speed):
        value = getattr(answer.speed, one.name)
        if isinstance(value, Latency):
            found[one.name] = value.interval
        elif isinstance(value, Interval) and value.low < value.high:
            found[one.name] = value
    return found


def asked(seed: int) -> Any:
    """One random question of serving that has an answer of speed."""
    random_of = random.Random(seed)
    load: dict[str, Any] = {
        "isl": random_of.choice((128, 1024, 8192)), "osl": random_of.choice((64, 1024)),
        "concurrency": random_of.choice((1, 8, 64, 300)),
    }  # fmt: skip
    card, engine = random_of.choice(CARDS), random_of.choice(ENGINES)
    if random_of.random() < 0.3 and engine != "llama.cpp":
        load["engine_version"] = {"vllm": "0.7.3", "sglang": "0.4.6", "tensorrt-llm": "0.16.0"}[engine]
    version = load.pop("engine_version", None)
    try:
        return tl.fit(
            random_of.choice(MODELS), gpu=card, engine=f"{engine}@{version}" if version else engine,
            tp=int(card.partition(":")[2] or 1), **load,
        )  # fmt: skip
    except tl.TrilemmaError:
        return None


def test_ranges_of_random_answers() -> None:
    """Times lie as far above as below, where no wait for a slot, age or host widens one side; rates turn them around."""
    answers = [answer for seed in range(60) if (answer := asked(seed)) is not None and answer.speed is not None]
    assert len(answers) > 25
    words = set()
    for answer in answers:
        speed = answer.speed
        assert speed is not None
        words.add(speed.ranges)
        assert speed.ranges in (*DISTANCES.values(), OF_DATASHEETS)
        found = figures_of(answer)
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s", "tokens_per_s_per_gpu"):
            if name not in found:  # an overloaded plan has no first tokens to tell
                continue
            one = found[name]
            assert 0 < one.low < one.value < one.high, (name, one, answer.question)
            below, above = math.log(one.value / one.low), math.log(one.high / one.value)
            assert min(below, above) > 0.1, (name, one, answer.question)  # no side is forgotten
        tpot, rate = found["tpot_s"], found["output_tokens_per_s"]
        assert rate.high / rate.value == pytest.approx(tpot.value / tpot.low, rel=1e-6)
        assert rate.value / rate.low == pytest.approx(tpot.high / tpot.value, rel=1e-6)
        if speed.ranges in DISTANCES.values() and not any(one.code == "engine-era" for one in answer.warnings):
            assert tpot.value / tpot.low == pytest.approx(tpot.high / tpot.value, rel=0.35)
    assert len(words) >= 4


def test_farther_is_wider() -> None:
    """One engine and model on cards from its own runs outwards: each class at least nearly as wide as the one before."""
    for figure in ("tpot", "ttft", "prefill"):
        halves = [
            shipped().half(figure, family="mixture", distance=distance, in_flight=8) or 0.0
            for distance in ("own deployment", "pair never together", "card never seen")
        ]
        assert all(near < 1.05 * far for near, far in itertools.pairwise(halves)), (figure, halves)


@pytest.mark.parametrize(
    ("card", "words"),
    [("h100-sxm:8", "many runs of this trainer"), ("rtx-4090:8", "runs of other trainers or on other cards")],
)
def test_ranges_of_a_training_say_whose_runs(card: str, words: str) -> None:
    answer = tl.fit("llama-3.1-8b", gpu=card, train=8192, global_batch=64)
    assert answer.speed is not None
    assert answer.speed.ranges.startswith(words)
    step = figures_of(answer)["step_s"]
    assert step.low < step.value < step.high


def test_ranges_of_pools_apart_are_those_of_such_runs() -> None:
    answer = tl.fit(
        "llama-3.1-70b-fp8", gpu="h200-sxm:8", isl=4096, osl=512, concurrency=32, prefill="1xTP4", decode="1xTP4"
    )
    assert answer.speed is not None
    assert answer.speed.ranges == OF_POOLS
