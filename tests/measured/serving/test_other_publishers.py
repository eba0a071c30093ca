"""What sets publishers apart that were not fitted: beside their classes, few told by a wider law, judged by the others alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import trilemma as tl
from trilemma.intervals import NINETY, student_t_95
from trilemma.measured.serving.speed.elsewhere import Published, held, widths_of
from trilemma.measured.serving.speed.refit import elsewhere_rows
from trilemma.measured.tables import Row
from trilemma.timing import serving_terms
from trilemma.timing.distance import DISTANCES
from trilemma.timing.serving_terms import ServingTerms, Spread, loaded_as


def figures(origin: str, *ratios: float, name: str = "tpot", own: float = 0.0) -> list[Published]:
    return [Published(name=name, origin=origin, ratio=ratio, own=own) for ratio in ratios]


def test_publishers_weigh_alike_however_many_rows_they_have() -> None:
    alone, pair = (figures("a", *[1.1] * rows) + figures("b", *[1.5] * 20) for rows in (20, 1000))
    assert widths_of(alone) == pytest.approx(widths_of(pair))
    mean = math.sqrt((math.log(1.1) ** 2 + math.log(1.5) ** 2) / 2)
    apart = (math.log(1.5) - math.log(1.1)) / 2
    assert widths_of(alone) == {"tpot": pytest.approx(mean * student_t_95(3) / NINETY + apart / 2)}
    assert widths_of(figures("a", *[1.5] * 4)) == {}  # so few figures tell nothing


def test_what_a_class_explains_sets_nobody_apart() -> None:
    inside = figures("a", *[1.3] * 20, own=math.log(1.31))
    assert widths_of(inside) == {"tpot": 0.2}  # but a stranger is a stranger
    beside = figures("a", *[1.3] * 20, own=math.log(1.2))
    width = math.sqrt(math.log(1.3) ** 2 - math.log(1.2) ** 2)
    assert widths_of(beside) == {"tpot": pytest.approx(width * student_t_95(2) / NINETY)}


def test_throughput_is_as_far_off_as_the_time_of_its_tokens() -> None:
    found = figures("a", *[1.2] * 20, name="output") + figures("a", *[1.6] * 20)
    assert widths_of(found)["output"] == widths_of(found)["tpot"] > math.log(1.6)


def test_who_tells_nothing_of_many_in_flight_stands_there_with_what_it_tells_of_few() -> None:
    burst, few = figures("a", *[9.0] * 20, name="ttft of many"), figures("b", *[1.2] * 20, name="ttft")
    alone, both = widths_of(burst), widths_of([*burst, *few])
    assert math.log(9.0) / 2 < both["ttft of many"] < alone["ttft of many"]
    lucky = [*figures("a", *[1.1] * 20, name="ttft of many"), *figures("a", *[4.0] * 20, name="ttft")]
    assert widths_of(lucky)["ttft of many"] == widths_of(lucky)["ttft"]  # nobody is surer of many than of few
    assert both["ttft"] == widths_of(few)["ttft"]  # what a burst asks for says nothing of few
    own = [*figures("b", *[3.0] * 20, name="ttft of many"), *few]
    assert widths_of([*burst, *own])["ttft of many"] == widths_of([*burst, *own[:20]])["ttft of many"]


def test_publishers_to_come_lie_inside() -> None:
    """Publishers with a width of their own: 300 times four of them, each judged by one more."""
    random = np.random.default_rng(5)

    def publisher(name: str) -> list[Published]:
        scale = 0.3 * math.exp(random.normal(0, 0.4))
        return figures(name, *np.exp(random.normal(0, scale, 30)).tolist(), own=0.1)

    inside = []
    for _ in range(300):
        apart = widths_of([one for name in "abcd" for one in publisher(name)])["tpot"]
        inside += [one.off <= math.hypot(one.own, apart) for one in publisher("e")]
    assert 0.87 < np.mean(inside) < 0.97


def test_one_publisher_is_judged_by_the_widths_of_the_others() -> None:
    found = [*figures("a", *[1.2, 0.8] * 5), *figures("b", *[1.5] * 10), *figures("c", *[3.0, 1.1] * 5)]
    rows, inside, half = held(found)["tpot", "c"]
    assert (rows, inside) == (10, 0.5)
    assert half == pytest.approx(widths_of([one for one in found if one.origin != "c"])["tpot"])
    assert held(found)["tpot", "a"][1] == 1.0
    alone = held(figures("a", 1.2, 1.4, own=math.log(1.3)))
    assert alone["tpot", "a"] == (2, 0.5, pytest.approx(math.log(1.3)))


def test_few_and_many_in_flight_are_told_apart() -> None:
    assert [loaded_as("tpot", load) for load in (1, 256, 257)] == ["tpot", "tpot", "tpot of many"]
    near, many = (
        Spread(figure=figure, family="", distance="other model", half=half, blocks=9, rows=9)
        for figure, half in (("tpot", 0.3), ("tpot of many", 0.4))
    )
    asked: dict[str, Any] = {"family": "dense", "distance": "own deployment"}
    terms = ServingTerms(offsets=(), spreads=(near,), apart={"tpot": 0.4, "tpot of many": 1.2})
    assert terms.half("tpot", in_flight=64, **asked) == pytest.approx(0.5)  # squares add
    assert terms.half("tpot", in_flight=1000, **asked) == pytest.approx(math.hypot(0.3, 1.2))
    assert terms.half("tpot", in_flight=1000, fitted_origin=True, **asked) == 0.3
    assert replace(terms, spreads=(near, many)).half("tpot", in_flight=1000, **asked) == pytest.approx(
        math.hypot(0.4, 1.2)
    )
    assert replace(terms, apart={"tpot": 0.4}).half("tpot", in_flight=1000, **asked) == pytest.approx(0.5)
    assert terms.half("ttft", in_flight=1, **asked) is None


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
    # the last reads 16 GB in 4 ms, which 3.35 TB/s do not
    odd = (
        {},
        {"tier": "C"},
        {"concurrency_or_batch": "rate=2"},
        {"origin": min(terms.origins)},
        {"value": ""},
        {"value": "4"},
    )
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
    distance = next(name for name, words in DISTANCES.items() if words == speed.ranges)
    halves = [terms.half("tpot", family="dense", distance=distance, in_flight=load) for load in (200, 300)]
    assert [math.log(width) for width in widths] == pytest.approx(halves, rel=1e-6)
    assert widths[0] < widths[1]
