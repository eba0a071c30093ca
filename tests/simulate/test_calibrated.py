"""Steps of one's own deployment from requests that it answered."""

from __future__ import annotations

import json

import pytest

import trilemma as tl
from trilemma.errors import InputError

MODEL, GPU = "llama-3.1-8b", "h100-sxm"
TRAFFIC = {"arrivals": "poisson:12", "isl": "lognormal:800:0.6", "osl": "lognormal:150:0.5", "bounds": False}


def written(tmp_path, *, decode: float, prompt: float, clock_s: float = 0.0, requests: int = 160):
    """Requests answered by an engine whose decode steps and prompts take so many times as long, by a clock of its own, at a load
    that it carries: beyond it both means hang on prompts alone."""
    from trilemma.ask.simulate import question_of
    from trilemma.simulation.serving.calibrated import StepFactors
    from trilemma.simulation.serving.deployment import simulated_plan
    from trilemma.simulation.serving.simulation import SimulationRules, run_once
    from trilemma.simulation.serving.stated import stated_traffic

    plan = simulated_plan(question_of(MODEL, GPU), typical_tokens=950)
    factors = StepFactors(
        decode=decode, prompt=prompt, decode_rows=float(plan.most_running), prompt_rows=float(plan.tokens)
    )
    traffic = stated_traffic(
        trace=None, arrivals="poisson:12", isl="lognormal:1500:0.6", osl="lognormal:150:0.5", lengths=None, requests=requests,
        seed=7, scale_rate=1.0, begin_s=0.0, span_s=None,
    )  # fmt: skip
    rows = []

    def note(one):
        rows.append(
            {
                "arrival": one.arrival.arrival_s,
                "input": one.isl,
                "output": one.osl,
                "queued_ts": one.arrival.arrival_s + clock_s,
                "first_token_s": one.first_s + clock_s,
                "finish_s": one.finish_s + clock_s,
            }
        )

    from dataclasses import replace

    run_once(replace(plan, times=plan.times.calibrated(factors.of_rows)), traffic.again(), SimulationRules(), note)
    file = tmp_path / "answered.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in sorted(rows, key=lambda row: row["arrival"])))
    return file


@pytest.mark.parametrize(("decode", "prompt", "clock_s"), [(1.3, 0.8, 0.0), (0.8, 1.4, 27536.66)])
def test_the_factors_of_an_engine_are_found_from_what_it_answered(tmp_path, decode, prompt, clock_s) -> None:
    file = written(tmp_path, decode=decode, prompt=prompt, clock_s=clock_s)
    found = tl.simulate(MODEL, GPU, measured=file, **TRAFFIC).to_dict()["inputs"]["calibrated"]
    assert (found["requests_met"], found["requests_left_out"]) == (80, 80)
    assert found["decode_factor"] == pytest.approx(decode, rel=0.05)
    assert found["prompt_factor"] == pytest.approx(prompt, rel=0.1)
    assert abs(found["left_out_error"]) < 0.02


def test_bars_are_nearer_then_and_hold_what_was_left_out(tmp_path) -> None:
    file = written(tmp_path, decode=1.1, prompt=1.1)
    told = {**TRAFFIC, "bounds": True, "requests": 50}
    plain, own = (tl.simulate(MODEL, GPU, **told, **more).to_dict() for more in ({}, {"measured": file}))
    low, high = own["bounds"]["time_factors"]
    assert plain["bounds"]["time_factors"][0] < low < 1 < high < plain["bounds"]["time_factors"][1]
    assert high >= 1.02


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"finish_s": 2.0}, "first token"),
        ({"first_token_s": 1.0}, "finish"),
        ({"first_token_s": 3.0, "finish_s": 2.0}, "one clock"),
        ({"first_token_s": "soon", "finish_s": 2.0}, "not a number of seconds"),
        ({"first_token_s": 1.0, "finish_s": 2.0}, "at least 8"),
    ],
)
def test_what_calibrates_nothing_is_named(tmp_path, row, why) -> None:
    file = tmp_path / "answered.jsonl"
    file.write_text(json.dumps({"arrival": 0.5, "input": 10, "output": 10, **row}))
    with pytest.raises(InputError, match=why):
        tl.simulate(MODEL, GPU, measured=file, **TRAFFIC)
