"""A whole training run counted anew: days, what failures take, both ends of its interval, and the edges of what is asked.

Daly 2006 (equation 20), Young 1974, Poisson counts; Meta's 419 interruptions in 54 days on 16,384 H100.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.intervals import NINETY, Interval
from trilemma.timing.training_run import (
    Failures,
    TrainingRun,
    checkpoint_interval_s,
    checkpoint_stall_s,
    lost_share,
    mean_time_between_s,
    training_run,
)

STEP = Interval(value=10.0, low=8.0, high=13.0)
META = Failures(gpu_hours_between=50_000.0, restart_s=600.0, repair_s=4 * 3600.0, spares=0)
GPUS, BETWEEN = 16_384, 50_000 * 3600 / 16_384


def ran(**more: Any) -> TrainingRun:
    plain: dict[str, Any] = {
        "tokens": 4e12,
        "tokens_per_step": 16e6,
        "step": STEP,
        "gpus": GPUS,
        "stall_s": 5.0,
        "failures": META,
    }
    return training_run(**{**plain, **more})


def waits_s(failures: Failures, between_s: float) -> float:
    """A restart, and a repair where more fail within one than there are spares (Poisson)."""
    mean = failures.repair_s / between_s
    covered = sum(math.exp(-mean) * mean**count / math.factorial(count) for count in range(failures.spares + 1))
    return failures.restart_s + (1 - covered) * failures.repair_s


def lost(failures: Failures, interval_s: float, between_s: float, stall_s: float = 5.0) -> float:
    useful = interval_s / (interval_s + stall_s)
    again = (waits_s(failures, between_s) + (interval_s + stall_s) / 2) / between_s
    return 1 - useful * (1 - again)


def daly(stall_s: float, between_s: float) -> float:
    ratio = stall_s / (2 * between_s)
    return math.sqrt(2 * stall_s * between_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s


def test_meta_is_interrupted_every_three_hours() -> None:
    assert float(mean_time_between_s(GPUS, META)) == pytest.approx(BETWEEN)
    interruptions = 54 * 24 * 3600 / BETWEEN
    assert interruptions == pytest.approx(419, rel=0.02)
    assert mean_time_between_s(np.array([1, 10]), META).tolist() == [50_000 * 3600.0, 5_000 * 3600.0]


@pytest.mark.parametrize("spares", [0, 1, 3, 8])
def test_days_with_failures(spares: int) -> None:
    failures = replace(META, spares=spares, repair_s=3600.0)
    found = ran(failures=failures)
    interval = daly(5.0, BETWEEN)
    share = lost(failures, interval, BETWEEN)
    steps = 250_000
    assert (found.steps, found.checkpoint_steps) == (steps, round(interval / 10.0))
    assert found.checkpoint_interval_s == pytest.approx(interval)
    assert found.lost_share == pytest.approx(share)
    days = steps * 10.0 / (1 - share) / 86400
    assert found.days.value == pytest.approx(days)
    assert found.interruptions == pytest.approx(days * 86400 / BETWEEN)
    # Half as many failures and the quick step; twice as many, and one standard deviation of their count more.
    slow = lost(failures, interval, 2 * BETWEEN)
    assert found.days.low == pytest.approx(steps * 8.0 / (1 - slow) / 86400)
    chance = 1 + NINETY / math.sqrt(found.interruptions)
    quick = lost(failures, interval, BETWEEN / 2 / chance)
    assert found.days.high == pytest.approx(steps * 13.0 / (1 - quick) / 86400)


def test_days_without_failures() -> None:
    found = ran(failures=None, tokens=4e12 + 1)
    assert found.steps == 250_001  # a step begun is a step
    for bound, step in (("value", 10.0), ("low", 8.0), ("high", 13.0)):
        assert getattr(found.days, bound) == pytest.approx(250_001 * step / 86400)
    assert (found.checkpoint_interval_s, found.checkpoint_steps, found.lost_share, found.interruptions) == (0, 0, 0, 0)


def test_a_short_run_on_few_cards_waits_for_no_repair() -> None:
    found = ran(gpus=8, tokens=16e8, failures=META)  # a thousand seconds of work, a failure in 260 days
    between = 50_000 * 3600 / 8
    interval = daly(5.0, between)
    again = (600 + (interval + 5) / 2) / between
    assert found.lost_share == pytest.approx(1 - interval / (interval + 5) * (1 - again))
    # Fewer than one interruption: its count is known within a factor of two and one deviation of one.
    high = BETWEEN * GPUS / 8 / 2 / (1 + NINETY)
    again = (600 + (interval + 5) / 2) / high
    assert found.days.high == pytest.approx(100 * 13.0 / (interval / (interval + 5) * (1 - again)) / 86400)


def test_a_stall_of_nothing_is_taken_as_a_hundredth_of_a_step() -> None:
    quick = replace(META, repair_s=3600.0)
    for stall, counted in ((0.0, 0.1), (0.09, 0.1), (0.11, 0.11)):
        assert ran(stall_s=stall, failures=quick).checkpoint_interval_s == pytest.approx(daly(counted, BETWEEN))


def test_a_checkpoint_comes_after_a_step_at_least() -> None:
    assert ran(step=Interval(value=1e5, low=9e4, high=1.1e5), tokens=16e7, gpus=64).checkpoint_steps == 1


def test_repairs_no_longer_than_a_restart_make_nobody_wait() -> None:
    quick = replace(META, repair_s=600.0)
    interval = daly(5.0, BETWEEN)
    again = (600 + (interval + 5) / 2) / BETWEEN
    assert ran(failures=quick).lost_share == pytest.approx(1 - interval / (interval + 5) * (1 - again))
    assert ran(failures=replace(quick, repair_s=601.0)).lost_share > ran(failures=quick).lost_share


@pytest.mark.parametrize(
    ("stall", "between"), [(1.0, 1000.0), (199.0, 100.0), (200.0, 100.0), (201.0, 100.0), (80.0, 100.0), (100.0, 51.0)]
)
def test_the_interval_of_daly_and_its_ends(stall: float, between: float) -> None:
    expected = max(daly(stall, between), stall) if stall < 2 * between else between
    assert float(checkpoint_interval_s(stall, between)) == pytest.approx(expected)


def test_what_is_lost_is_between_nothing_and_all() -> None:
    assert float(lost_share(0.0, 10.0, 1e30, 0.0)) == pytest.approx(0.0)
    assert float(lost_share(10.0, 10.0, 1e30, 0.0)) == pytest.approx(0.5)
    assert float(lost_share(0.0, 10.0, 100.0, 5.0)) == pytest.approx(0.1)
    assert float(lost_share(0.0, 10.0, 1.0, 5.0)) == 1.0
    assert lost_share(10.0, np.array([10.0, 30.0]), 1e30, 0.0).tolist() == pytest.approx([0.5, 0.25])


def test_checkpoints_that_are_written_before_training_goes_on() -> None:
    given = {"host_bytes_per_s": 50e9, "storage_bytes_per_s_per_gpu": 2e9}
    assert float(checkpoint_stall_s(100e9, **given)) == pytest.approx(2.0)
    assert float(checkpoint_stall_s(100e9, **given, asynchronous=False)) == pytest.approx(50.0)
    fast = {"host_bytes_per_s": 50e9, "storage_bytes_per_s_per_gpu": 100e9}
    assert float(checkpoint_stall_s(100e9, **fast, asynchronous=False)) == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["gpu_hours_between", "restart_s", "repair_s"])
def test_times_of_failures_have_ends(name: str) -> None:
    for value in (0.0, -1.0, 1e12, math.nan):
        with pytest.raises(InputError, match=f"{name} {value} is out of range"):
            Failures(**{name: value})
    assert getattr(Failures(**{name: 9.9e11}), name) == 9.9e11
    assert getattr(Failures(**{name: 1e-9}), name) == 1e-9


def test_spares_have_ends() -> None:
    for spares in (-1, 2**20):
        with pytest.raises(InputError, match=f"{spares} spares is out of range"):
            Failures(spares=spares)
    assert (Failures(spares=2**20 - 1).spares, Failures(spares=0).spares) == (2**20 - 1, 0)


def test_defaults_are_what_meta_counted() -> None:
    assert Failures() == Failures(gpu_hours_between=50_000.0, restart_s=600.0, repair_s=14_400.0, spares=0)


def test_machines_that_fail_faster_than_they_start() -> None:
    with pytest.raises(InputError, match=r"1000000 GPUs fail every 0.05 h"):
        ran(gpus=1_000_000)
