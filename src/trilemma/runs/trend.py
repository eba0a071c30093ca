"""A figure over time: hour by hour, where it changed for good, and what happened then.

Change-points are those of the logarithms of hourly medians (`trilemma.change_points`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trilemma.change_points import cuts, deviation_of, score
from trilemma.errors import InputError
from trilemma.runs.run import RunEvent

HOUR_S = 3600.0
#: Hours between a change and an event that is named with it.
_NEAR_HOURS = 3.0


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
    deviation = deviation_of(logs)
    found = cuts(logs, deviation)
    edges = [0, *found, len(logs)]
    levels = [float(np.exp(np.mean(logs[low:high]))) for low, high in itertools.pairwise(edges)]
    changes = tuple(
        ChangePoint(
            at_s=float(starts[cut]),
            before=levels[at],
            after=levels[at + 1],
            change=levels[at + 1] / levels[at] - 1,
            score=score(logs[edges[at] : edges[at + 2]], cut - edges[at], deviation),
            events=tuple(one.what for one in events if abs(one.at_s - starts[cut]) <= _NEAR_HOURS * HOUR_S),
        )
        for at, cut in enumerate(found)
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
