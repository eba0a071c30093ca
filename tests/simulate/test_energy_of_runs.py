"""Joules of a run that is simulated: those of `fit` under a steady load, idle cards when nobody asks."""

from __future__ import annotations

from typing import Any

import pytest

import trilemma as tl

_LOAD: dict[str, Any] = {"isl": 1024, "osl": 256}


def _drawn(gpu: str, *, requests: int = 1000, **options: Any) -> tuple[float, float, float, Any]:
    """Watts, kilowatt-hours, joules a token, and the run."""
    found = tl.simulate("llama-3.1-8b", gpu, **_LOAD, requests=requests, bounds=False, **options)
    energy = found.energy
    assert energy is not None
    assert energy.joules_per_token is not None
    return energy.watts.value, energy.kwh.value, energy.joules_per_token.value, found


@pytest.mark.parametrize(
    ("gpu", "plan", "load"),
    [
        ("h100-sxm", {}, {"arrivals": "poisson:8"}),
        ("h100-sxm", {}, {"arrivals": "users:16"}),
        ("h100-sxm:2", {"tp": 2}, {"arrivals": "users:64"}),
        ("h100-sxm:2", {"pp": 2}, {"arrivals": "users:64"}),
        ("a100-sxm4-80gb:2", {"replicas": 2}, {"arrivals": "users:16"}),
        ("h100-sxm:2", {"prefill": "1xTP1", "decode": "1xTP1"}, {"arrivals": "users:16"}),
    ],
)
def test_a_steady_load_draws_what_fit_says(gpu: str, plan: dict[str, Any], load: dict[str, str]) -> None:
    """Two ways to the same figure: steps one by one, and the mean step of a load."""
    kind, _, value = load["arrivals"].partition(":")
    asked: dict[str, Any] = {"rate": float(value)} if kind == "poisson" else {"concurrency": int(value)}
    estimate = tl.fit("llama-3.1-8b", gpu, **_LOAD, **plan, **asked)
    assert estimate.joules_per_token is not None
    _, _, joules, _ = _drawn(gpu, **plan, **load)
    assert joules == pytest.approx(estimate.joules_per_token.value, rel=0.12)


def test_a_run_adds_up_to_its_watts() -> None:
    watts, kwh, joules, found = _drawn("h100-sxm", arrivals="poisson:4")
    seconds = found.seconds_simulated
    assert kwh == pytest.approx(watts * seconds / 3.6e6)
    assert joules == pytest.approx(watts * seconds / (found.output_tokens_per_s * seconds))
    assert found.cost.joules_per_token == pytest.approx(joules)


def test_cards_that_wait_draw_idle_and_full_ones_no_more_than_their_limit() -> None:
    """Requests once in 1,000 seconds leave a card at idle, 23 to 34 % of the limit on those that were measured (power.md)."""
    watts, _, few, _ = _drawn("h100-sxm", arrivals="constant:0.001", requests=20)
    assert 0.2 * 700 < watts < 0.36 * 700
    busy, _, many, _ = _drawn("h100-sxm", arrivals="burst")
    assert watts < busy <= 700
    assert many < few / 10


def test_the_energy_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from trilemma.cli.main import main

    line = "simulate serving llama-3.1-8b --gpu h100-sxm --arrivals poisson:8 --isl 1024 --osl 256 --requests 200"
    assert main([*line.split(), "--compare", "tp=1"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "kWh in all" in told
    assert "J per output token" in told
