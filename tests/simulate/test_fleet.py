"""Engines that come and go, requests that matter more than others, tenants that are told apart."""

from __future__ import annotations

import json

import pytest
from serving_engines import LinearTimes, served

import trilemma as tl
from trilemma.errors import InputError
from trilemma.simulation.serving.fleet import EngineFailure, EngineFleet, ScalingRule
from trilemma.simulation.serving.routers import LeastLoaded
from trilemma.simulation.serving.traffic import Arrival


def test_engines_follow_the_load() -> None:
    """A burst of 60 requests in a minute, then one a minute: from one engine to four and back."""
    fleet = EngineFleet(route=LeastLoaded(), scaling=ScalingRule(fewest=1, busy=5, start_s=10.0, cool_s=30.0))
    arrivals = [Arrival(float(at), 10, 20) for at in range(60)] + [Arrival(60.0 * at, 10, 20) for at in range(2, 12)]
    _, book, engines = served(arrivals, route=fleet, engines=4, times=LinearTimes(step_s=1.0))
    assert book.completed == 70
    assert fleet.most_up == 4
    assert fleet.changes[-1][1] == 1
    first = next(at for at, many in fleet.changes if many == 2)
    assert min(one.now_s for one in engines if one.steps) >= 0
    assert first == 6.0  # six requests are there when the seventh comes
    fleet.close(book.ended_s)
    assert book.ended_s < fleet.engine_seconds < 4 * book.ended_s


def test_a_failure_starts_its_requests_anew() -> None:
    calm = [Arrival(0.0, 10, 100), Arrival(0.0, 10, 100)]
    times = LinearTimes(step_s=1.0)
    before, *_ = served(calm, route=LeastLoaded(), engines=2, times=times)
    assert max(one.finish_s for one in before) == pytest.approx(100.0)
    failure = EngineFailure(at=0, from_s=49.5, down_s=1000.0)
    fleet = EngineFleet(route=LeastLoaded(), failures=(failure,))
    ended, book, engines = served(calm, route=fleet, engines=2, times=times, failures=(failure,))
    assert book.completed == 2
    assert sorted(one.finish_s for one in ended) == [pytest.approx(100.0), pytest.approx(150.0)]
    assert all(one.pool.held == 0 and one.pool.allocated == one.pool.returned for one in engines)
    assert engines[0].decoding == engines[0].context_sum == 0


def test_a_lower_number_is_served_first() -> None:
    arrivals = [Arrival(0.0, 10, 30)] + [Arrival(1.0, 10, 5, priority=2)] * 3 + [Arrival(2.0, 10, 5, priority=1)]
    ended, *_ = served(arrivals, times=LinearTimes(step_s=1.0), most_running=1)
    assert [one.index for one in ended] == [0, 4, 1, 2, 3]


def test_tenants_are_told_apart(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = [
        {"arrival": at / 5, "input": 100, "output": 10 if at % 4 else 30, "tenant": "b" if at % 4 else "a"}
        for at in range(40)
    ]
    trace = tmp_path / "t.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    found = tl.simulate("llama-3.1-8b", "h100-sxm", trace=trace, bounds=False).to_dict()
    assert [(one["tenant"], one["requests"], one["output_tokens"]) for one in found["tenants"]] == [
        ("a", 10, 300),
        ("b", 30, 300),
    ]
    assert "tenant" in tl.simulate("llama-3.1-8b", "h100-sxm", trace=trace, bounds=False).show()


def test_options_scale_and_fail() -> None:
    options = {
        "arrivals": "poisson:20",
        "isl": 500,
        "osl": 50,
        "requests": 400,
        "replicas": 4,
        "router": "least-loaded",
        "bounds": False,
    }
    found = tl.simulate("llama-3.1-8b", "h100-sxm:4", autoscale="1:4:2:10", fail="0:5:5", **options)
    assert found.completed == 400
    assert found.scaling is not None
    assert 1 < found.scaling.mean <= 4
    for name, words in (("autoscale", "often"), ("autoscale", "0:1:1:1"), ("fail", "1:2"), ("fail", "-1:0:1")):
        with pytest.raises(InputError, match=name):
            tl.simulate("llama-3.1-8b", "h100-sxm:4", **{**options, name: words})
