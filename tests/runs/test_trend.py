"""Figures by the hour: changes that are there are found where they are, those that are not are not."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.runs.run import RunEvent
from trilemma.runs.store import RunLedger
from trilemma.runs.trend import hourly, trend

_HOURS = 24 * 28


def _series(seed: int, *, at: int | None, factor: float = 1.05, noise: float = 0.03, count: int = _HOURS) -> np.ndarray:
    values = 1 + noise * np.random.default_rng(seed).standard_normal(count)
    if at is not None:
        values[at:] *= factor
    return values


def _times(count: int) -> list[float]:
    return [3600.0 * at for at in range(count)]


def test_a_planted_slow_down_is_found() -> None:
    """A step of 5 % under 3 % of noise is 1.7 deviations: the best any method does for one series is ± 2 hours in about 88 of 100
    (the likelihood's own maximum, 1,000 series); what is asked here is that it comes near to that and misses none."""
    near = found = 0
    for seed in range(100):
        at = int(np.random.default_rng(1000 + seed).integers(48, _HOURS - 48))
        told = trend("step_s", _times(_HOURS), list(_series(seed, at=at)))
        hits = [one for one in told.changes if abs(one.at_s / 3600 - at) <= 24]
        found += bool(hits)
        near += any(abs(one.at_s / 3600 - at) <= 2 for one in hits)
    assert found == 100
    assert near >= 80


def test_clean_series_raise_no_alarm() -> None:
    alarms = sum(bool(trend("step_s", _times(_HOURS), list(_series(seed, at=None))).changes) for seed in range(100))
    assert alarms <= 5


def test_a_change_is_told_with_what_happened_then() -> None:
    values = _series(3, at=300, factor=1.2)
    told = trend(
        "step_s",
        _times(_HOURS),
        list(values),
        [RunEvent(at_s=301 * 3600.0, what="restart"), RunEvent(at_s=0.0, what="start")],
    )
    (change,) = told.changes
    assert change.change == pytest.approx(0.2, abs=0.01)
    assert change.before == pytest.approx(1.0, abs=0.01)
    assert change.events == ("restart",)
    assert told.level == pytest.approx(1.2, abs=0.01)
    assert told.noise == pytest.approx(0.03, rel=0.2)


def test_there_and_back_are_two_changes() -> None:
    values = _series(5, at=200, factor=1.1)
    values[400:] /= 1.1
    told = trend("step_s", _times(_HOURS), list(values))
    assert [round(one.at_s / 3600) for one in told.changes] == pytest.approx([200, 400], abs=2)


def test_hours_are_medians_of_their_points() -> None:
    starts, medians = hourly([0.0, 10.0, 20.0, 3600.0, 3700.0, 9000.0], [1.0, 9.0, 2.0, 4.0, 6.0, 5.0])
    assert list(starts) == [0.0, 3600.0, 7200.0]
    assert list(medians) == [2.0, 5.0, 5.0]


def test_what_has_no_trend_is_refused() -> None:
    with pytest.raises(InputError, match="hours"):
        trend("x", [1.0, 2.0], [1.0, 1.0])
    with pytest.raises(InputError, match="ratios"):
        trend("x", _times(10), [0.0] * 10)


def test_a_year_of_twenty_series_is_quick() -> None:
    series = [list(_series(seed, at=4000, count=8760)) for seed in range(20)]
    times = _times(8760)
    began = time.process_time()
    for at, values in enumerate(series):
        assert trend(f"f{at}", times, values).changes
    assert time.process_time() - began < 2.0


def test_from_the_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.db"
    values = _series(11, at=100, factor=1.1, count=200)
    with tl.record("long", ledger=path) as run, RunLedger(path) as ledger:
        ledger.add_points(run.run.id, [("step_s", 3600.0 * at, float(value)) for at, value in enumerate(values)])
        ledger.add_event(run.run.id, RunEvent(at_s=100 * 3600.0, what="clock drop"))
    assert main(["runs", "trend", "long", "--ledger", str(path)]) == 0
    told = capsys.readouterr().out
    assert "clock drop" in told
    assert "1970-01-05" in told
    assert main(["runs", "trend", "long", "--alarm", "--ledger", str(path)]) == 1
    assert main(["runs", "trend", "long", "--json", "--ledger", str(path)]) == 0
