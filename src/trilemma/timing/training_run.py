"""From a step to a run: checkpoints, failures, spares, and days until so many tokens are trained, as an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.intervals import NINETY, Interval
from trilemma.quantities import Numbers

_DAY_S = 86400.0
#: Interruptions counted in so many days of a run bound its rate; without a stated count the rate is known within this factor.
_RATE_UNKNOWN = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Failures:
    """How a machine fails and comes back. Meta counted 419 interruptions in 54 days on 16,384 H100 (The Llama 3 Herd of
    Models, 2024, section 3.3.4): one in 50,000 GPU hours.

    ``gpu_hours_between`` is the mean over one accelerator and all that fails with it; ``restart_s`` from the failure until
    training goes on (detection, replacement, loading). ``spares`` are accelerators that stand by: a failure they can take
    costs ``restart_s``; beyond them the run also waits ``repair_s``.
    """

    gpu_hours_between: float = 50_000.0
    restart_s: float = 600.0
    repair_s: float = 4 * 3600.0
    spares: int = 0

    def __post_init__(self) -> None:
        for name in ("gpu_hours_between", "restart_s", "repair_s"):
            if not 0 < getattr(self, name) < 1e12:
                raise InputError(f"{name} {getattr(self, name)} is out of range; give a number above 0")
        if not 0 <= self.spares < 2**20:
            raise InputError(f"{self.spares} spares is out of range; give a whole number of at least 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    """How checkpoints are written: ``storage_bytes_per_s`` is what all accelerators together have of the storage (None: nobody
    stated it); ``asynchronous`` ones are copied to host memory and written while training goes on."""

    storage_bytes_per_s: float | None = None
    asynchronous: bool = True

    def __post_init__(self) -> None:
        if self.storage_bytes_per_s is not None and not 1e6 <= self.storage_bytes_per_s <= 1e15:
            raise InputError(
                f"`storage` {self.storage_bytes_per_s:g} bytes/s is out of range; give a rate such as 100GB/s"
            )

    def write_s(self, n_bytes: float) -> float:
        """Seconds until ``n_bytes`` of state of all accelerators lie on the storage; 0 where its rate is not known."""
        return 0.0 if self.storage_bytes_per_s is None else n_bytes / self.storage_bytes_per_s


def mean_time_between_s(gpus: Numbers, failures: Failures) -> Any:
    """Seconds between interruptions of a job on ``gpus`` accelerators that fail on their own.

    Numbers or arrays that broadcast. By definition of independent failures: the mean of one over the number of
    accelerators.
    """
    return failures.gpu_hours_between * 3600.0 / np.asarray(gpus, dtype=float)


def checkpoint_interval_s(stall_s: Numbers, between_s: Numbers) -> Any:
    """Seconds of work between checkpoints that lose least: Daly 2006, equation 20, whose first term is Young's (1974)
    ``√(2·stall·between)``; never less than the stall.

    ``stall_s`` is what one checkpoint holds training up: all of its writing, or the copy to host memory where it is written
    asynchronously.

    Seconds, numbers or arrays that broadcast.
    """
    stall, between = np.asarray(stall_s, dtype=float), np.asarray(between_s, dtype=float)
    ratio = stall / (2 * between)
    found = np.sqrt(2 * stall * between) * (1 + np.sqrt(ratio) / 3 + ratio / 9) - stall
    return np.where(stall < 2 * between, np.maximum(found, stall), between)


def lost_share(stall_s: Numbers, interval_s: Numbers, between_s: Numbers, restart_s: Numbers) -> Any:
    """The part of wall-clock time that checkpoints, work done twice and restarts take.

    Each ``interval`` of work costs one stall; each interruption a restart and, on average, half an interval again.

    A share of time, numbers or arrays that broadcast. Source: Young 1974; Daly 2006.
    """
    stall, interval = np.asarray(stall_s, dtype=float), np.asarray(interval_s, dtype=float)
    useful = interval / (interval + stall)
    again = (np.asarray(restart_s, dtype=float) + (interval + stall) / 2) / np.asarray(between_s, dtype=float)
    return np.clip(1 - useful * np.maximum(1 - again, 0.0), 0.0, 1.0)


def checkpoint_stall_s(
    state_bytes_per_gpu: Numbers,
    *,
    host_bytes_per_s: float,
    storage_bytes_per_s_per_gpu: float,
    asynchronous: bool = True,
) -> Any:
    """Seconds that one checkpoint of the sharded state holds training up: the copy to host memory, or the whole writing.

    Numbers or arrays that broadcast. By definition bytes over bandwidth; torch.distributed.checkpoint's async_save
    (state_dict_saver.py) copies first.
    """
    slowest = host_bytes_per_s if asynchronous else min(host_bytes_per_s, storage_bytes_per_s_per_gpu)
    return np.asarray(state_bytes_per_gpu, dtype=float) / slowest


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """A whole run: days on the calendar, the checkpoint interval chosen, what is lost, how often it is interrupted."""

    days: Interval
    steps: int
    checkpoint_interval_s: float
    checkpoint_steps: int
    lost_share: float
    interruptions: float


def training_run(
    *,
    tokens: float,
    tokens_per_step: float,
    step: Interval,
    gpus: int,
    stall_s: float = 0.0,
    failures: Failures | None = None,
    write_s: float = 0.0,
) -> TrainingRun:
    """Days to train ``tokens`` at ``step`` seconds an optimizer step, with the best checkpoint interval.

    Bounds combine those of the step with those of the failure rate (a factor of two either way) and of its chance: the number
    of interruptions is Poisson. No checkpoint begins before the last one is written, which takes ``write_s``. Raises
    `InputError` where interruptions come faster than the run recovers.
    """
    steps = int(np.ceil(tokens / tokens_per_step))
    if failures is None:
        return TrainingRun(
            days=step.scaled(steps / _DAY_S), steps=steps, checkpoint_interval_s=0.0, checkpoint_steps=0, lost_share=0.0,
            interruptions=0.0,
        )  # fmt: skip
    between = float(mean_time_between_s(gpus, failures))
    interval = max(float(checkpoint_interval_s(max(stall_s, step.value / 100), between)), write_s)

    def days(step_s: float, between_s: float) -> tuple[float, float]:
        waits = _restart_s(failures, steps * step_s, between_s)
        lost = float(lost_share(stall_s, interval, between_s, waits))
        if lost >= 1.0:
            raise InputError(
                f"{gpus} GPUs fail every {between_s / 3600:.2g} h, faster than a restart and half a checkpoint interval take;"
                " give more reliable accelerators or a shorter restart"
            )
        return steps * step_s / (1 - lost) / _DAY_S, lost

    middle, lost = days(step.value, between)
    count = middle * _DAY_S / between
    chance = 1 + NINETY / np.sqrt(max(count, 1.0))
    low, _ = days(step.low, between * _RATE_UNKNOWN)
    high, _ = days(step.high, between / _RATE_UNKNOWN / chance)
    return TrainingRun(
        days=Interval(value=middle, low=min(low, middle), high=max(high, middle)),
        steps=steps,
        checkpoint_interval_s=interval,
        checkpoint_steps=max(1, round(interval / step.value)),
        lost_share=lost,
        interruptions=count,
    )


def _restart_s(failures: Failures, work_s: float, between_s: float) -> float:
    """Mean seconds lost to one interruption beside repeated work: failures beyond the spares under repair also wait.

    Spares are used up when more accelerators fail within one repair time than there are of them (Poisson).
    """
    if work_s < between_s:
        return failures.restart_s
    broken = failures.repair_s / between_s
    term = covered = float(np.exp(-broken))
    for count in range(1, failures.spares + 1):
        term *= broken / count
        covered += term
    waiting = 0.0 if failures.spares == 0 and failures.repair_s <= failures.restart_s else 1 - min(covered, 1.0)
    return failures.restart_s + waiting * failures.repair_s
