"""Runs: the checkpoint interval that loses least, failures, spares, days."""

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.intervals import Interval
from trilemma.timing.training_run import (
    Failures,
    checkpoint_interval_s,
    checkpoint_stall_s,
    lost_share,
    mean_time_between_s,
    training_run,
)


def test_meta_lost_a_node_every_three_hours() -> None:
    """419 unexpected interruptions in 54 days on 16,384 GPUs (The Llama 3 Herd of Models, section 3.3.4)."""
    measured = 54 * 86400 / 419
    assert float(mean_time_between_s(16384, Failures())) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(("stall", "between"), [(5.0, 10_000.0), (60.0, 86_400.0), (300.0, 20_000.0)])
def test_daly_is_young_at_first_order_and_near_the_true_optimum(stall: float, between: float) -> None:
    best = float(checkpoint_interval_s(stall, between))
    assert best == pytest.approx(np.sqrt(2 * stall * between), rel=0.2)
    tried = np.geomspace(best / 5, best * 5, 2001)
    found = tried[int(np.argmin(lost_share(stall, tried, between, 60.0)))]
    assert found == pytest.approx(best, rel=0.15)


def test_asynchronous_checkpoints_stall_for_the_copy_alone() -> None:
    copy, write = (
        float(checkpoint_stall_s(50e9, host_bytes_per_s=50e9, storage_bytes_per_s_per_gpu=1e9, asynchronous=on))
        for on in (True, False)
    )
    assert (copy, write) == (1.0, 50.0)


def test_days_are_steps_and_what_failures_add() -> None:
    step = Interval(value=10.0, low=9.0, high=11.0)
    calm = training_run(tokens=1e12, tokens_per_step=4e6, step=step, gpus=4096)
    assert calm.days.value == pytest.approx(250_000 * 10 / 86400)
    rough = training_run(tokens=1e12, tokens_per_step=4e6, step=step, gpus=4096, stall_s=5.0, failures=Failures())
    assert rough.days.low < calm.days.value < rough.days.value < rough.days.high
    assert 0.01 < rough.lost_share < 0.3
    spared = training_run(
        tokens=1e12, tokens_per_step=4e6, step=step, gpus=4096, stall_s=5.0, failures=Failures(spares=16)
    )
    assert spared.days.value < rough.days.value


def test_machines_that_fail_faster_than_they_recover_are_refused() -> None:
    with pytest.raises(InputError, match="faster than a restart"):
        training_run(
            tokens=1e13, tokens_per_step=4e6, step=Interval.exact(10.0), gpus=100_000, stall_s=60.0,
            failures=Failures(gpu_hours_between=1000.0),
        )  # fmt: skip
    with pytest.raises(InputError, match="above 0"):
        Failures(restart_s=float("nan"))
