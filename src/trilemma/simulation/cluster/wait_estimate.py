"""How long a job would wait if it came now, with bounds that 80 % of such jobs keep, learnt from those before it alone."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from trilemma.errors import InputError
from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import TICKS
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.outcome import WaitEstimate
from trilemma.simulation.cluster.runs import JobRun

#: Share of jobs that the bounds are for, how fast they follow misses, jobs alike that they are told from, and fewest of them.
_SHARE, _FOLLOWS, _ALIKE, _FEWEST = 0.8, 0.01, 200, 25
#: The narrowest and the widest that bounds get, in levels, and the class of load in which nobody waits and the job goes at once.
_NARROWEST, _WIDEST, _IDLE = 0.7, 3.0, (-1,)


#: What jobs of a class have in common beside the load when they came, as `_classes` orders them.
_ALIKE_IN = ("size and queue", "size", "load")


class ToldBounds(NamedTuple):
    """Ticks: the middle, the bounds, of how many jobs alike, and in what they are."""

    middle: float
    low: float
    high: float
    like: int
    alike: str


class WaitHistory:
    """Waits of jobs alike, the latest; bounds are their quantiles, wider after misses and narrower after hits (adaptive
    conformal inference: Gibbs and Candès 2021), one width where jobs go at once and one where they do not."""

    def __init__(self) -> None:
        self._known: dict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=_ALIKE))
        self._width: dict[bool, float] = {True: _SHARE, False: _SHARE}

    def told(self, keys: Sequence[Hashable]) -> ToldBounds | None:
        """Bounds for a job of the classes ``keys``, the nearest first; None where too few are known."""
        for key, alike in zip(keys, _ALIKE_IN, strict=True):
            known = self._known.get(key)
            if known is not None and len(known) >= _FEWEST:
                waits = np.sort(np.array(known))
                low, middle, high = (self._quantile(waits, at) for at in self._levels(keys[-1]))
                return ToldBounds(middle, low, high, len(known), alike)
        return None

    def happened(self, keys: Sequence[Hashable], wait: float) -> None:
        for key in keys:
            self._known[key].append(wait)

    def judged(self, keys: Sequence[Hashable], held: bool) -> None:
        """Whether bounds that were told held."""
        busy = keys[-1] != _IDLE
        self._width[busy] = min(max(self._width[busy] + _FOLLOWS * (_SHARE - held), _NARROWEST), _WIDEST)

    def _levels(self, key: Hashable) -> tuple[float, float, float]:
        width = self._width[key != _IDLE]
        return 0.5 - width / 2, 0.5, 0.5 + width / 2

    @staticmethod
    def _quantile(waits: Any, level: float) -> float:
        """Beyond the largest known the bound grows by as much again as levels go beyond one."""
        if level <= 0:
            return 0.0 if level < 0 else float(waits[0])
        if level >= 1:
            return float(waits[-1]) * (1 + 10 * (level - 1))
        return float(waits[min(int(level * len(waits)), len(waits) - 1)])


def wait_estimate(run: ClusterRun, gpus: float, queue: str) -> WaitEstimate:
    """For a job of ``gpus`` in ``queue`` that comes when the last job of ``run`` does. Raises `InputError` where too little is
    known."""
    judged = list(_judge(run))
    half = judged[len(judged) // 2 :]
    waiting = [held for _, bounds, held in half if bounds is not None and bounds.high > 0]
    at_once = [held for _, bounds, held in half if bounds is not None and bounds.high == 0]
    history = WaitHistory()
    for one in sorted((one for one in run.runs if one.first_start is not None), key=lambda one: one.first_start or 0):
        history.happened(_classes(run, one, one.units, one.job.queue), _wait(one))
    last = run.runs[-1]
    now = history.told(_classes(run, last, round(gpus * WHOLE), queue or last.job.queue))
    if now is None:
        raise InputError(f"`wait` {gpus:g} GPUs: fewer than {_FEWEST} jobs of the workload tell; give a longer one")
    return WaitEstimate(
        job=f"{gpus:g} GPUs{f' in {queue}' if queue else ''}",
        wait_s=now.middle / TICKS,
        low_s=now.low / TICKS,
        high_s=now.high / TICKS,
        held_out_coverage=float(np.mean([*waiting, *at_once])),
        judged=len(waiting) + len(at_once),
        waiting_coverage=float(np.mean(waiting)) if waiting else None,
        waiting=len(waiting),
        like=now.like,
        alike=now.alike,
    )


def _judge(run: ClusterRun) -> Iterator[tuple[JobRun, ToldBounds | None, bool]]:
    """Each job in the order of time with the bounds it would have been told, from what was known when it came, and whether its
    wait fell into them."""
    history = WaitHistory()
    later: list[tuple[float, int, JobRun, ToldBounds | None, bool]] = []
    for one in run.runs:
        come = one.job.submit_ticks
        while later and later[0][0] <= come:
            _, _, past, bounds, is_start = heapq.heappop(later)
            keys = _classes(run, past, past.units_asked, past.job.queue)
            if is_start:
                history.happened(keys, _wait(past))
            if bounds is not None:
                history.judged(keys, bounds.low <= _wait(past) <= bounds.high)
        bounds = history.told(_classes(run, one, one.units_asked, one.job.queue))
        wait = _wait(one)
        held = bounds is not None and bounds.low <= wait <= bounds.high
        yield one, bounds, held
        missed = bounds is not None and wait > bounds.high
        start = math.inf if one.first_start is None else float(one.first_start)
        if missed and bounds is not None:
            heapq.heappush(later, (come + bounds.high, one.at, one, bounds, False))
        if start < math.inf:
            heapq.heappush(later, (start, one.at + len(run.runs), one, None if missed else bounds, True))


def _wait(one: JobRun) -> float:
    return math.inf if one.first_start is None else float(one.first_start - one.job.submit_ticks)


def _classes(run: ClusterRun, one: JobRun, units: int, queue: str) -> list[Hashable]:
    """What makes jobs alike, the nearest first: the load when they came, their size and queue; then less of it."""
    free, asked = one.seen
    capacity = run.state.capacity_units
    now = asked == 0 and free >= units
    load = -1 if now else int(4 * math.log2(1 + 16 * asked / capacity))
    size = int(math.log2(max(units // WHOLE, 1)))
    return [(load, size, queue), (load, size), (load,)]
