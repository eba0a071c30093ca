"""A cap on the watts of cards that train, and of cards that prefill and decode apart."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.hardware.catalogue import find
from trilemma.timing.clocks import clock_law, clock_under_cap, clocked_share, kept_speed
from trilemma.timing.power import Activity, drawn_share, power_terms

_JOB: dict[str, Any] = {"train": 8192, "global_batch": 64, "dp": 8, "zero": 3}
_POOLS: dict[str, Any] = {"prefill": "1xTP4", "decode": "1xTP4", "isl": 2048, "osl": 256, "concurrency": 64}
_ASKED = {"training": ("llama-3.1-8b", _JOB), "pools": ("llama-3.1-70b", _POOLS)}


@pytest.mark.parametrize("kind", list(_ASKED))
def test_less_power_is_slower_and_spares_joules(kind: str) -> None:
    """No cap below the draw leaves speed as it is; cards draw at most the cap; lower clocks draw less for the same work."""
    model, options = _ASKED[kind]
    free, high, low = (tl.fit(model, "h100-sxm:8", **options, power_cap=cap) for cap in (None, 600, 400))
    rates = [one.speed.tokens_per_s_per_gpu.value for one in (free, high, low) if one.speed is not None]
    assert rates[0] >= rates[1] > rates[2] > 0.5 * rates[0]
    assert free.watts is not None
    assert low.watts is not None
    assert low.watts.value <= low.watts.high <= 8 * 400 < free.watts.value
    assert free.joules_per_token is not None
    assert low.joules_per_token is not None
    assert low.joules_per_token.value < free.joules_per_token.value


def test_a_cap_at_the_limit_changes_nothing() -> None:
    """A board never draws more than its limit, so that a cap there is none."""
    for model, options in _ASKED.values():
        free, full = (tl.fit(model, "h100-sxm:8", **options, power_cap=cap) for cap in (None, 700))
        assert full.speed is not None
        assert free.speed is not None
        assert full.speed.tokens_per_s_per_gpu.value == pytest.approx(free.speed.tokens_per_s_per_gpu.value, rel=0.1)


def test_lines_of_a_capped_step_sum_to_it_and_the_wire_keeps_its_time() -> None:
    free, low = (tl.fit("llama-3.1-8b", "h100-sxm:8", **_JOB, power_cap=cap) for cap in (None, 400))
    assert low.speed is not None
    assert free.speed is not None
    assert low.speed.step_s is not None
    assert sum(low.speed.lines.values()) == pytest.approx(low.speed.step_s.interval.value)
    assert low.speed.lines["linear"] > free.speed.lines["linear"]
    assert low.speed.lines["sharded_weights"] == pytest.approx(free.speed.lines["sharded_weights"])


def test_a_step_under_a_cap_is_known_less_well() -> None:
    free, low = (tl.fit("llama-3.1-8b", "h100-sxm:8", **_JOB, power_cap=cap) for cap in (None, 400))
    widths = [
        one.speed.step_s.interval for one in (free, low) if one.speed is not None and one.speed.step_s is not None
    ]
    assert widths[1].high / widths[1].low > 1.2 * widths[0].high / widths[0].low


def test_bert_on_capped_v100s() -> None:
    """150 of 250 W on V100 took 13.7 % off the energy of trainings of language models in the mean (McDonald et al. 2022,
    arXiv:2205.09646, as told at vuink.com/post/havgr-d-dnv), of boards that drew less than their limit before."""
    card = find("v100-sxm2-32gb")
    law, terms = clock_law(card), power_terms(card)
    doing = Activity(compute=0.2, memory=0.3)
    before = float(drawn_share(doing, terms))
    assert 0.65 < before < 0.85
    clocked = clocked_share({"compute": 0.7, "memory": 0.2, "launches": 0.05}, law)
    kept = float(kept_speed(clock_under_cap(0.6, doing, terms, law, clocked), clocked))
    assert 0.6 / before / kept == pytest.approx(1 - 0.137, abs=0.05)
    assert 1.0 < 1 / kept < 1.15
    assert np.isfinite(kept)


def test_the_command_line_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    line = "fit llama-3.1-8b --gpu h100-sxm:8 --train 8192 --global-batch 64 --dp 8 --zero 3 --power-cap 400 --json"
    assert main(line.split()) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["inputs"]["cluster"]["power_cap_w"] == 400
    assert told["power"]["watts"] <= 3200
    assert main([*line.split()[:-3], "--power-cap", "20"]) == 2
    assert "power_cap" in capsys.readouterr().err.replace("-", "_")
