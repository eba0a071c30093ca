"""Widths of answers from publishers that were not fitted: each weighs the same, judged by those of the others alone."""

from __future__ import annotations

import math

import pytest

import trilemma as tl
from trilemma.measured.serving.speed.elsewhere import Published, held, widths_of
from trilemma.measured.serving.speed.refit import elsewhere_rows
from trilemma.measured.tables import Row
from trilemma.timing import serving_terms
from trilemma.timing.serving_terms import ServingTerms, published_as


def figures(origin: str, *ratios: float, name: str = "tpot", own: float = 0.0) -> list[Published]:
    return [Published(name=name, origin=origin, ratio=ratio, own=own) for ratio in ratios]


def test_publishers_weigh_alike_however_many_rows_they_have() -> None:
    many, few = figures("a", *[1.1] * 1000), figures("b", 1.5, 1.5)
    assert widths_of([*many, *few]) == {"tpot": pytest.approx(math.log(1.5))}
    assert widths_of(many) == {"tpot": pytest.approx(math.log(1.1))}


def test_one_publisher_is_judged_by_the_widths_of_the_others() -> None:
    found = [*figures("a", 1.2, 0.8), *figures("b", 1.5), *figures("c", 3.0, 1.1)]
    rows, inside, width = held(found)["tpot", "c"]
    assert (rows, inside, width) == (2, 0.5, pytest.approx(math.log(1.5)))
    assert held(found)["tpot", "a"][1:] == (1.0, pytest.approx(math.log(3.0)))
    alone = held(figures("a", 1.2, 1.4, own=math.log(1.3)))
    assert alone["tpot", "a"] == (2, 0.5, 0.0)


def test_few_and_many_in_flight_are_told_apart() -> None:
    assert [published_as("tpot", load) for load in (1, 256, 257)] == ["tpot", "tpot", "tpot of many"]
    terms = ServingTerms(offsets=(), elsewhere={"tpot": 0.5, "tpot of many": 1.0, "ttft": 0.3})
    assert [terms.at_least("tpot", load) for load in (64, 1000)] == [0.5, 1.0]
    assert terms.at_least("ttft", 1000) == 0.3
    assert terms.at_least("output", 1) == 0.0


def test_rates_of_a_phase_are_bounded_as_its_time_where_times_were_told() -> None:
    terms = ServingTerms(
        offsets=(), figures={"vllm": frozenset({"decode", "tpot"}), "llama.cpp": frozenset({"decode"})}
    )
    assert terms.told_as("vllm", "decode") == "tpot"
    assert terms.told_as("llama.cpp", "decode") == "decode"
    assert terms.told_as("vllm", "prefill") == "prefill"


def test_rows_that_count() -> None:
    told = {
        "model": "llama-3.1-8b", "gpu": "h100-sxm", "gpus": "1", "tp": "1", "engine": "vllm", "isl": "1024", "osl": "128",
        "concurrency_or_batch": "8", "metric": "tpot_ms", "value": "9", "origin": "somebody/else", "tier": "B",
    }  # fmt: skip
    terms = serving_terms.shipped()
    odd = ({}, {"tier": "C"}, {"concurrency_or_batch": "rate=2"}, {"origin": min(terms.origins)}, {"value": ""})
    rows = [
        Row(id=str(at), line=at, cells={k: v for k, v in {**told, **cells}.items() if v})
        for at, cells in enumerate(odd)
    ]
    (one,) = elsewhere_rows(rows, terms, models_dir=None)
    assert (one.name, one.origin) == ("tpot", "somebody/else")
    assert one.own > 0


def test_answers_say_so() -> None:
    """What publishers told of more than 256 requests in flight is further off, and so are the bounds of an answer."""
    widths = []
    for load in (200, 300):
        speed = tl.fit("llama-3.1-8b", gpu="h200-sxm", isl=1024, osl=256, concurrency=load).speed
        assert speed is not None
        assert speed.tpot_s is not None
        widths.append(speed.tpot_s.interval.high / speed.tpot_s.interval.value)
    terms = serving_terms.shipped()
    assert widths == pytest.approx([math.exp(terms.at_least("tpot", load)) for load in (200, 300)], rel=1e-6)
    assert widths[0] < widths[1]
