"""Where the level of a series changes for good.

Binary segmentation of logarithms (Scott and Knott 1974), each cut the least-squares one (CUSUM; Page 1954), kept where ``|mean of
the right − mean of the left| / (σ √(1/l + 1/r))`` passes what the largest of so many noises reaches once in `1 / _FALSE` series
(Bonferroni, on the safe side for the alike statistics of one series). ``σ`` comes from differences of neighbours (robust to
steps), widened where days of hours differ by more than their hours explain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trilemma.intervals import normal_deviations

#: Series without a change of which one may be said to have some.
_FALSE = 0.02
#: Points that a level must last, and levels that are told.
_SHORTEST, _MOST_LEVELS = 6, 32
#: MAD of a normal law to its deviation.
_MAD = 1.4826
_DAY = 24


def deviation_of(logs: NDArray[np.float64]) -> float:
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


def cuts(logs: NDArray[np.float64], deviation: float) -> list[int]:
    """Where the level changes, in order."""
    bar = normal_deviations(1 - _FALSE / (2 * len(logs)))
    waiting = [(0, len(logs))]
    found_cuts: list[int] = []
    while waiting and len(found_cuts) < _MOST_LEVELS - 1:
        low, high = waiting.pop()
        found = _best(logs[low:high], deviation)
        if found is None or found[1] < bar:
            continue
        found_cuts.append(low + found[0])
        waiting += [(low, low + found[0]), (low + found[0], high)]
    return _settled(logs, sorted(found_cuts), deviation, bar)


def _settled(logs: NDArray[np.float64], cuts: list[int], deviation: float, bar: float) -> list[int]:
    """Each cut again between its neighbours: those of larger pieces were found before the smaller ones were known."""
    for at in range(len(cuts)):
        low, high = (cuts[at - 1] if at else 0), (cuts[at + 1] if at + 1 < len(cuts) else len(logs))
        found = _best(logs[low:high], deviation)
        cuts[at] = low + found[0] if found is not None else cuts[at]
    edges = [0, *cuts, len(logs)]
    return [
        cut for at, cut in enumerate(cuts) if score(logs[edges[at] : edges[at + 2]], cut - edges[at], deviation) >= bar
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


def score(logs: NDArray[np.float64], cut: int, deviation: float) -> float:
    """How far the levels on both sides of ``cut`` lie apart, in deviations of their difference."""
    left, right = logs[:cut], logs[cut:]
    if not len(left) or not len(right):
        return 0.0
    return float(abs(right.mean() - left.mean()) / deviation / np.sqrt(1 / len(left) + 1 / len(right)))
