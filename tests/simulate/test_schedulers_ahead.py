"""Schedulers that work ahead of their cards, by engine and version, and the knee of a load in its chart."""

from __future__ import annotations

import pytest

import trilemma as tl
from trilemma.ask.simulate import question_of
from trilemma.simulation.serving.deployment import simulated_plan
from trilemma.timing.eras import works_ahead

PLAN = ("llama-3.1-8b", "h100-sxm")


@pytest.mark.parametrize(
    ("engine", "version", "ahead"),
    [
        ("vllm", "0.13.0", False),  # --async-scheduling of 0.10 is off unless asked for; on from 0.14 (pull 27614)
        ("vllm", "0.14.0", True),
        ("sglang", "0.3.6", False),
        ("sglang", "0.4.0", True),
        ("tensorrt-llm", "1.0.0", True),
        ("llama.cpp", "b8000", False),
    ],
)
def test_by_version(engine: str, version: str, ahead: bool) -> None:
    assert works_ahead(engine, version) is ahead


def test_only_a_scheduler_ahead_sees_requests_late() -> None:
    lags = {
        engine: simulated_plan(question_of(*PLAN, engine=engine, context=4096), typical_tokens=1000).lag_steps
        for engine in ("vllm@0.13.0", "vllm@0.19.0", "llama.cpp")
    }
    assert lags["vllm@0.19.0"] > 0
    assert lags["vllm@0.13.0"] == lags["llama.cpp"] == 0


def test_told_not_to_the_cards_wait_for_what_the_host_does_for_each_sequence() -> None:
    load = {"arrivals": "constant:40", "isl": 100, "osl": 200, "requests": 200, "bounds": False}
    ahead, not_ahead = (
        tl.simulate(*PLAN, **load, async_scheduling=one).to_dict()["metrics"]["tpot_ms"]["mean"]
        for one in (None, False)
    )
    # some 60 are in flight at a time, each of 20 to 40 us of the host
    assert 60 * 10e-3 < not_ahead - ahead < 60 * 60e-3
    older = [
        tl.simulate(*PLAN, **load, engine="vllm@0.13.0", async_scheduling=one).to_dict()["metrics"]["tpot_ms"]["mean"]
        for one in (None, False)
    ]
    assert older[0] == older[1]  # off by default


def test_knee_and_saturation_are_written_away_from_each_other() -> None:
    found = tl.simulate(*PLAN, arrivals="poisson:8", isl=500, osl=50, requests=200, load_curve=True, bounds=False)
    layers = found.chart()["vconcat"][0]["layer"]
    labels = [one for one in layers if isinstance(one["mark"], dict) and one["mark"]["type"] == "text"]
    (left,), (right,) = (one["data"]["values"] for one in labels)
    assert left["rate"] <= right["rate"]
    assert [one["mark"]["align"] for one in labels] == ["right", "left"]
    assert all(one["encoding"]["y"]["value"] < 0 for one in labels)  # above the plot
    assert layers[0]["encoding"]["x"]["scale"]["domain"][1] > 1.1 * right["rate"]
