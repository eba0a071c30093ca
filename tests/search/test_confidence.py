"""Targets that have to hold with a chance, and what is said of chances."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.intervals import Interval
from trilemma.models.resolve import load_model
from trilemma.report.chances import joint_chance
from trilemma.search import search_serving
from trilemma.workloads import Serving

JOB = ["plan", "llama-3.1-70b-fp8", "--serve", "4096/1024", "--precision", "as-is", "--kv-dtype", "auto"]


def _search(confidence, *, pools="both", gpus=8, **load):
    return search_serving(
        load_model("llama-3.1-70b-fp8"), Cluster.of(find("h100-sxm"), gpus), Serving(isl=4096, osl=1024, **load), top=8,
        precision=["as-is"], kv_dtype=["auto"], pools=pools, confidence=confidence,
    )  # fmt: skip


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.5, 0.8, 0.95])
def test_a_limit_is_met_with_the_chance_that_it_was_made_for(chance):
    lean = Interval(value=1.2, low=0.9, high=3.0)
    assert lean.chance_below(lean.at_chance(chance)) == pytest.approx(chance, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("pools", ["aggregated", "disaggregated", "both"])
def test_every_plan_shown_holds_each_target_with_the_chance_asked_for(pools):
    made = []
    for confidence in (0.5, 0.8, 0.95):
        result = _search(confidence, pools=pools, ttft_ms=6000, tpot_ms=40)
        assert result.meets_targets
        assert all(joint_chance(found.estimate) >= confidence - 0.001 for found in result.plans)
        made.append(result.plans[0].estimate.speed.tokens_per_s_per_gpu.value)
    assert made[0] > made[1] > made[2]


@pytest.mark.slow
def test_without_a_chance_the_central_value_counts():
    result = _search(None, ttft_ms=3000, tpot_ms=40)
    for found in result.plans:
        assert found.estimate.speed.ttft_s.interval.value <= 3.0
        assert found.estimate.speed.tpot_s.interval.value <= 0.040
    assert any(joint_chance(found.estimate) < 0.8 for found in result.plans)


def test_a_chance_without_target_or_out_of_range_is_refused():
    with pytest.raises(InputError, match="`ttft` or `tpot`"):
        _search(0.8, concurrency=8)
    for chance in (0.0, 1.0, 80.0):
        with pytest.raises(InputError, match="above 0 and below 1"):
            _search(chance, tpot_ms=40)


@pytest.mark.slow
def test_chances_are_told(capsys):
    assert main([*JOB, "--gpu", "h100-sxm:8", "--ttft", "3000", "--tpot", "40", "--confidence", "0.9"]) == 0
    out = capsys.readouterr().out
    assert "each with a chance of at least 90 %" in out
    assert "#1 holds both targets with a chance of 9" in out
    assert "chance below 0.9" in out
    assert main([*JOB, "--gpu", "h100-sxm", "--rate", "3", "--ttft", "3000", "--tpot", "40"]) == 0
    assert "within the targets, with a chance of" in capsys.readouterr().out


@pytest.mark.slow
def test_an_open_first_token_is_told(capsys):
    assert main([*JOB, "--gpu", "h100-sxm:8", "--tpot", "40", "--concurrency", "32"]) == 0
    assert "no --ttft: plans with a time to the first token of up to" in capsys.readouterr().out


def test_the_first_command_of_the_readme_answers_with_a_plan_that_holds_its_targets(capsys):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    words = shlex.split(readme.partition("trilemma plan ")[2].partition("\n")[0])
    assert main(["plan", *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    best = document["plans"][0]
    assert {one["name"] for one in best["targets"]} == {"ttft", "tpot"}
    for one in best["targets"]:
        figure = best["speed"][f"{one['name']}_ms"]
        assert one["probability"] >= 0.5
        assert figure["low"] <= figure["value"] <= one["target_ms"]
    assert main(["plan", *words]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("#1 holds both targets")]
    assert f"with a chance of {min(one['probability'] for one in best['targets']):.0%}".replace("%", " %") in said


@pytest.mark.parametrize("gpu", ["h100-sxm:2", "b200-sxm:1", "mi300x:2", "l40s:4", "a100-sxm4-80gb:2"])
@pytest.mark.parametrize("pools", ["aggregated", "disaggregated"])
def test_a_figure_within_its_target_holds_it_with_at_least_even_odds_and_one_beyond_does_not(gpu, pools):
    name, _, count = gpu.partition(":")
    if count == "1" and pools == "disaggregated":
        pytest.skip("pools take two GPUs")
    result = search_serving(
        load_model("llama-3.1-8b"), Cluster.of(find(name), int(count)), Serving(isl=2048, osl=512, ttft_ms=600, tpot_ms=25),
        top=12, front=8, pools=pools,
    )  # fmt: skip
    assert result.plans
    for found in result.plans:
        speed = found.estimate.speed
        for target in found.estimate.targets:
            value_ms = getattr(speed, f"{target.name}_s").interval.value * 1e3
            assert (value_ms <= target.target_ms * (1 + 1e-9)) == (target.probability >= 0.5)


@pytest.mark.slow
def test_bounds_of_what_is_made_stay_within_what_arrives(capsys):
    for rate in (0.01, 1.0, 4.0):
        for found in _search(None, rate=rate).plans:
            speed = found.estimate.speed
            assert speed.output_tokens_per_s.value == pytest.approx(rate * 1024)
            assert speed.output_tokens_per_s.high == pytest.approx(rate * 1024)
            assert speed.tokens_per_s_per_gpu.high == pytest.approx(rate * 1024 / 8)
        if rate < 1:
            assert speed.output_tokens_per_s.low == pytest.approx(rate * 1024)
    assert main([*JOB, "--gpu", "h100-sxm:8", "--rate", "0.01", "--pools", "disaggregated"]) == 0
    assert " <1 " in capsys.readouterr().out
