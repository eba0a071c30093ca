"""One thing done again and again: seconds of the median, and how far the others lie from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from trilemma.errors import InputError

#: A round lasts at least this long, so that the clock's own steps and calls are no part of it.
_ROUND_S = 2e-3
#: Rounds that are counted however long they take, and how much longer than asked the fewest rounds may take.
_FEWEST_EVER, _LENIENT = 3, 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds of one call: the median of ``repeats`` rounds, and the range that nine of ten of them lie in."""

    median_s: float
    low_s: float
    high_s: float
    repeats: int

    @property
    def spread(self) -> float:
        """Half the range over the median: what another round may differ by."""
        return (self.high_s - self.low_s) / 2 / self.median_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long one measurement may take: ``warm_s`` before it counts, then rounds for ``measure_s``, ``fewest`` at least."""

    warm_s: float
    measure_s: float
    fewest: int = 5

    def scaled(self, factor: float) -> Patience:
        return Patience(warm_s=self.warm_s * factor, measure_s=self.measure_s * factor, fewest=self.fewest)


QUICK = Patience(warm_s=0.1, measure_s=0.4)
FULL = Patience(warm_s=0.5, measure_s=2.5, fewest=11)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopwatch:
    """``wait`` returns when the device has done what was asked of it; ``now`` reads the seconds that count: of the wall, or those
    that this process computed, where others use the processor too."""

    wait: Callable[[], None]
    now: Callable[[], float] = time.perf_counter

    def seconds(self, call: Callable[[], object], calls: int = 1) -> float:
        """Of ``calls`` calls, one after the other."""
        self.wait()
        started = self.now()
        for _ in range(calls):
            call()
        self.wait()
        return self.now() - started


def timed(call: Callable[[], object], watch: Stopwatch, patience: Patience) -> Timing:
    """Time ``call``: warms up first (caches, clocks, kernels chosen by trial), then counts rounds of as many calls as fill some
    milliseconds."""
    calls = _warmed(call, watch, patience.warm_s)
    rounds: list[float] = []
    started = time.perf_counter()
    while len(rounds) < _FEWEST_EVER or (
        time.perf_counter() < started + patience.measure_s * (1 if len(rounds) >= patience.fewest else _LENIENT)
    ):
        rounds.append(watch.seconds(call, calls) / calls)
    return summary(rounds)


def summary(rounds_s: Sequence[float]) -> Timing:
    """The timing of rounds that each took so many seconds. Raises `InputError` for none."""
    if not rounds_s:
        raise InputError("nothing was timed; give at least one repeat")
    low, high = np.quantile(np.asarray(rounds_s), (0.05, 0.95))
    return Timing(median_s=median(rounds_s), low_s=float(low), high_s=float(high), repeats=len(rounds_s))


def _warmed(call: Callable[[], object], watch: Stopwatch, warm_s: float) -> int:
    """Warm up; how many calls make a round."""
    until, last = time.perf_counter() + warm_s, watch.seconds(call)
    while time.perf_counter() < until:
        last = min(last, watch.seconds(call))
    return max(1, round(_ROUND_S / max(last, 1e-7)))
