"""How many requests run at once: engines that reserve whole outputs, engines whose requests grow, requests below replicas."""

from __future__ import annotations

import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma import engines
from trilemma.cli.main import main
from trilemma.intervals import normal_cdf
from trilemma.timing.admission import Admission


def test_normal_cdf_is_the_normal_law() -> None:
    normal = statistics.NormalDist()
    at = np.linspace(-6, 6, 97)
    assert np.allclose(normal_cdf(at), [normal.cdf(float(x)) for x in at], atol=1e-7)
    assert normal_cdf(0.0) == pytest.approx(0.5, abs=1e-7)


def test_an_engine_that_reserves_counts_full_length_and_its_limit() -> None:
    admission = Admission(half_way=72.0, at_full_length=40.9, most=32, reserves=True)
    assert list(admission.running(np.array([1, 20, 32, 64]), correlation=0.0)) == [1, 20, 32, 32]
    assert admission.running_range(64) == (32, 32, 32)
    assert admission.holds == 32


def test_growing_requests_run_as_drawn_at_random() -> None:
    """Phases drawn uniformly: the mean of min(offered, requests that fit) is what the closed form says."""
    tokens, isl, osl, offered = 368_640.0, 1024.0, 8192.0, 74
    admission = Admission(half_way=tokens / (isl + osl / 2), at_full_length=tokens / (isl + osl))
    draw = np.random.default_rng(7).uniform(isl, isl + osl, size=(4000, 200)).cumsum(axis=1)
    fits = (draw <= tokens).sum(axis=1)
    expected = float(np.minimum(fits, offered).mean())
    assert float(admission.running(offered, correlation=0.0)) == pytest.approx(expected, abs=0.35)


def test_requests_in_step_wait_more_than_those_in_phases_of_their_own() -> None:
    admission = Admission(half_way=72.0, at_full_length=40.0)
    least, mean, most = (float(value) for value in admission.running_range(64))
    assert 40 <= least < mean < most <= 64
    assert most == pytest.approx(64, abs=0.1)


@settings(max_examples=300)
@given(
    st.floats(1.0, 5000.0), st.floats(0.1, 1.0), st.floats(0.0, 1.0), st.integers(1, 6000), st.booleans(),
    st.one_of(st.just(math.inf), st.integers(1, 2000)),
)  # fmt: skip
def test_running_is_between_full_length_and_offered(
    half_way: float, part: float, correlation: float, offered: int, reserves: bool, most: float
) -> None:
    admission = Admission(half_way=half_way, at_full_length=half_way * part, most=most, reserves=reserves)
    running = float(admission.running(offered, correlation=correlation))
    assert 1.0 <= running <= max(offered, 1.0)
    assert running >= min(offered, math.floor(half_way * part), most)
    assert running <= max(most, 1.0)
    assert float(admission.running(offered + 1, correlation=correlation)) >= running - 1e-9


def test_which_engines_reserve() -> None:
    reserving = {name for name in engines.readable() if engines.traits_of(name).admits_whole}
    assert reserving == {"tensorrt-llm", "llama.cpp", "ollama", "lm-studio"}


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, object]:
    assert main([*words, "--json"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def speed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, dict[str, float]]:
    found = answer(capsys, *words, code=code)["speed"]
    assert isinstance(found, dict)
    return found


SMALL = ("fit", "qwen3-8b", "--gpu", "h100-sxm:8", "--isl", "128", "--osl", "1024")


@pytest.mark.parametrize("replicas", [("--dp", "8"), ("--replicas", "8")])
def test_one_reader_is_served_by_one_replica(replicas: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    alone = speed(capsys, "fit", "qwen3-8b", "--gpu", "h100-sxm", *SMALL[4:], "--concurrency", "1")
    one = speed(capsys, *SMALL, *replicas, "--concurrency", "1")
    eight = speed(capsys, *SMALL, *replicas, "--concurrency", "8")
    assert one["output_tokens_per_s"]["value"] == pytest.approx(alone["output_tokens_per_s"]["value"], rel=0.02)
    assert eight["output_tokens_per_s"]["value"] == pytest.approx(8 * one["output_tokens_per_s"]["value"], rel=0.02)
    assert one["tokens_per_s_per_gpu"]["value"] == pytest.approx(one["output_tokens_per_s"]["value"] / 8, rel=1e-5)


@pytest.mark.parametrize("replicas", [("--dp", "8"), ("--replicas", "8")])
def test_throughput_rises_with_readers_that_replicas_do_not_divide(
    replicas: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    made = [
        speed(capsys, *SMALL, *replicas, "--concurrency", str(readers))["output_tokens_per_s"]["value"]
        for readers in (7, 8, 9, 12, 15, 16, 17)
    ]
    assert made == sorted(made)
    assert made[2] / made[5] == pytest.approx(9 / 16, rel=0.06)


def test_long_outputs_grow_into_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama-3.1-70B FP8 on one H200 at 64 requests of 1024/8192: 5.3 s to the first token, 46.3 ms a token and 1,360 tokens a
    second were measured (InferenceX, vLLM); 40 of them fit at full length, 73 half way."""
    load = ("llama-3.1-70b-fp8", "--gpu", "h200-sxm", "--isl", "1024", "--osl", "8192")
    grown = speed(capsys, "fit", *load, "--concurrency", "64")
    assert grown["ttft_ms"]["low"] < 5300 < grown["ttft_ms"]["high"]
    assert grown["tpot_ms"]["low"] < 46.3 < grown["tpot_ms"]["high"]
    assert 60 < grown["batch"] < 64  # type: ignore[operator]
    reserved = speed(capsys, "fit", *load, "--concurrency", "64", "--engine", "tensorrt-llm")
    assert reserved["batch"] <= 46  # type: ignore[operator]
    assert reserved["ttft_ms"]["value"] > 10 * grown["ttft_ms"]["value"]


def test_a_rate_beyond_the_plan_is_a_no_with_the_largest_that_holds(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("fit", "qwen3-32b", "--gpu", "h100-sxm:2", "--isl", "4096", "--osl", "512", "--rate")
    beyond = answer(capsys, *load, "50", code=1)
    assert beyond["fits"] is True
    found = beyond["speed"]
    assert isinstance(found, dict)
    assert "ttft_ms" not in found
    assert "request_ms" not in found
    most = found["most_requests_per_s"]["value"]
    assert found["output_tokens_per_s"]["value"] == pytest.approx(512 * most, rel=1e-3)
    assert main([*load, "50"]) == 1
    told = capsys.readouterr().out
    assert "DOES NOT CARRY THE LOAD: 50 requests a second" in told.replace("\n  ", " ")
    assert f"at most {most:.3g}" in told.replace("\n  ", " ")
    assert "ttft_ms" in speed(capsys, *load, f"{most * 0.9:.3f}")
    speed(capsys, *load, f"{most * 1.1:.3f}", code=1)


def test_replicas_named_for_an_overload_carry_it(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--isl", "4096", "--osl", "512", "--rate", "12")
    main(["fit", "qwen3-32b", "--gpu", "h100-sxm:2", *load])
    told = " ".join(capsys.readouterr().out.split())
    enough = int(told.partition(" replicas would carry them")[0].rpartition(" ")[2])
    assert (
        main(["fit", "qwen3-32b", "--gpu", f"h100-sxm:{2 * enough}", "--replicas", str(enough), "--tp", "2", *load])
        == 0
    )
    fewer = enough - 1
    assert (
        main(["fit", "qwen3-32b", "--gpu", f"h100-sxm:{2 * fewer}", "--replicas", str(fewer), "--tp", "2", *load]) == 1
    )
