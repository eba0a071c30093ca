"""A figure over time: hour by hour, where it changed for good, and what happened then.

Change-points: binary segmentation of the logarithms of hourly medians (Scott and Knott 1974), each cut the least-squares one
(CUSUM; Page 1954), kept where ``|mean of the right − mean of the left| / (σ √(1/l + 1/r))`` passes what the largest of so many
noises reaches once in `1 / _FALSE` series (Bonferroni, on the safe side for the alike statistics of one series). ``σ`` comes from
differences of neighbours (robust to steps), widened where days differ by more than their hours explain.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.intervals import normal_deviations
from trilemma.runs.run import RunEvent

HOUR_S = 3600.0
#: Series without a change of which one may be said to have some.
_FALSE = 0.02
#: Hours that a level must last, levels that are told, and hours between a change and an event that is named with it.
_SHORTEST, _MOST_LEVELS, _NEAR_HOURS = 6, 32, 3.0
#: MAD of a normal law to its deviation.
_MAD = 1.4826
_DAY = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """From ``at_s`` on the figure stands at ``after`` instead of ``before``; ``change`` is their ratio less one. ``score`` is
    the statistic in deviations, ``events`` what happened within hours of it."""

    at_s: float
    before: float
    after: float
    change: float
    score: float
    events: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """One figure by the hour: ``noise`` is the deviation of an hour as a share of its level."""

    figure: str
    hours: int
    first_s: float
    last_s: float
    level: float
    noise: float
    changes: tuple[ChangePoint, ...]


def trend(figure: str, at_s: Sequence[float], values: Sequence[float], events: Sequence[RunEvent] = ()) -> Trend:
    """The trend of points at times (seconds since 1970).

    Raises `InputError` for fewer than two hours, or values that are not above 0 (a change is told as a ratio).
    """
    starts, medians = hourly(at_s, values)
    if len(starts) < 2:
        raise InputError(f"{figure}: points of {len(starts)} hours are no trend; record at least two hours")
    if not (medians > 0).all():
        raise InputError(f"{figure}: values of 0 and below have no trend in ratios")
    logs = np.log(medians)
    deviation = _deviation(logs)
    cuts = _cuts(logs, deviation)
    edges = [0, *cuts, len(logs)]
    levels = [float(np.exp(np.mean(logs[low:high]))) for low, high in itertools.pairwise(edges)]
    changes = tuple(
        ChangePoint(
            at_s=float(starts[cut]),
            before=levels[at],
            after=levels[at + 1],
            change=levels[at + 1] / levels[at] - 1,
            score=_score(logs[edges[at] : edges[at + 2]], cut - edges[at], deviation),
            events=tuple(one.what for one in events if abs(one.at_s - starts[cut]) <= _NEAR_HOURS * HOUR_S),
        )
        for at, cut in enumerate(cuts)
    )
    return Trend(
        figure=figure, hours=len(starts), first_s=float(starts[0]), last_s=float(starts[-1]), level=levels[-1],
        noise=deviation, changes=changes,
    )  # fmt: skip


def hourly(at_s: Sequence[float], values: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(starts of the hours that have points, medians in them), in order."""
    times, points = np.asarray(at_s, dtype=float), np.asarray(values, dtype=float)
    if not len(times):
        return times, points
    hours = np.floor(times / HOUR_S)
    order = np.lexsort((points, hours))
    hours, points = hours[order], points[order]
    first = np.flatnonzero(np.r_[True, hours[1:] != hours[:-1]])
    counts = np.diff(np.r_[first, len(hours)])
    low, high = first + (counts - 1) // 2, first + counts // 2
    return hours[first] * HOUR_S, (points[low] + points[high]) / 2


def _deviation(logs: NDArray[np.float64]) -> float:
    """Deviation of an hour without what changed for good: from differences of neighbours, and from those of the means of days
    where hours that follow each other are alike."""
    steps = np.diff(logs)
    single = float(_MAD * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2))
    days = len(logs) // _DAY
    if days >= 8:
        means = logs[: days * _DAY].reshape(days, _DAY).mean(axis=1)
        apart = np.diff(means)
        joint = float(_MAD * np.median(np.abs(apart - np.median(apart))) / np.sqrt(2) * np.sqrt(_DAY))
        single = max(single, joint * 0.8)  # the mad of a few days wanders; 0.8 keeps clean series from being widened
    return max(single, 1e-9)


def _cuts(logs: NDArray[np.float64], deviation: float) -> list[int]:
    """Where the level changes, in order."""
    bar = normal_deviations(1 - _FALSE / (2 * len(logs)))
    waiting = [(0, len(logs))]
    cuts: list[int] = []
    while waiting and len(cuts) < _MOST_LEVELS - 1:
        low, high = waiting.pop()
        found = _best(logs[low:high], deviation)
        if found is None or found[1] < bar:
            continue
        cuts.append(low + found[0])
        waiting += [(low, low + found[0]), (low + found[0], high)]
    return _settled(logs, sorted(cuts), deviation, bar)


def _settled(logs: NDArray[np.float64], cuts: list[int], deviation: float, bar: float) -> list[int]:
    """Each cut again between its neighbours: those of larger pieces were found before the smaller ones were known."""
    for at in range(len(cuts)):
        low, high = (cuts[at - 1] if at else 0), (cuts[at + 1] if at + 1 < len(cuts) else len(logs))
        found = _best(logs[low:high], deviation)
        cuts[at] = low + found[0] if found is not None else cuts[at]
    edges = [0, *cuts, len(logs)]
    return [
        cut for at, cut in enumerate(cuts) if _score(logs[edges[at] : edges[at + 2]], cut - edges[at], deviation) >= bar
    ]


def _best(logs: NDArray[np.float64], deviation: float) -> tuple[int, float] | None:
    """(cut, statistic) of the piece's best cut; None where it is too short for one."""
    count = len(logs)
    if count < 2 * _SHORTEST:
        return None
    left = np.arange(1, count)
    sums = np.cumsum(logs)
    gaps = (sums[-1] - sums[:-1]) / (count - left) - sums[:-1] / left
    scores = np.abs(gaps) * np.sqrt(left * (count - left) / count) / deviation
    inside = scores[_SHORTEST - 1 : count - _SHORTEST]
    at = int(np.argmax(inside)) + _SHORTEST - 1
    return at + 1, float(scores[at])


def _score(logs: NDArray[np.float64], cut: int, deviation: float) -> float:
    left, right = logs[:cut], logs[cut:]
    if not len(left) or not len(right):
        return 0.0
    return float(abs(right.mean() - left.mean()) / deviation / np.sqrt(1 / len(left) + 1 / len(right)))
