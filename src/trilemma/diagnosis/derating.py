"""Clocks that fall for good while a GPU works, out of a series of samples: where, by how much, and what stood beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from trilemma.change_points import cuts, deviation_of

#: What is kept of each sample.
SERIES = (
    "utilisation_percent", "sm_clock_mhz", "temperature_c", "power_w", "power_violation_percent", "thermal_violation",
)  # fmt: skip
#: A GPU works from this utilisation on, in percent.
WORKS = 60
#: Samples of work to a point, points that show a level, the least noise of clocks (they move in steps), and the least fall told.
_BLOCK, _FEWEST, _LEAST_NOISE, _LEAST_FALL = 10, 12, 0.01, 0.03


def fallen_clocks(series: Mapping[str, Sequence[float]], *, works: float) -> dict[str, Any]:
    """The last level of the clock where it lies below the highest before it and stays there: megahertz before and after, the line
    at which it fell, degrees and watts before and after, and the share of later samples in which the driver told a reason.

    ``series`` has `SERIES` and ``line``, an entry a sample, nan where nothing was told; samples of less than ``works`` percent
    are passed over, since clocks of a card that waits mean nothing. Empty where nothing fell.
    """
    told = {name: np.asarray(series[name], dtype=float) for name in (*SERIES, "line")}
    busy = np.flatnonzero((told["utilisation_percent"] >= works) & (told["sm_clock_mhz"] > 0))
    points = len(busy) // _BLOCK
    if points < _FEWEST:
        return {}
    blocks = busy[: points * _BLOCK].reshape(points, _BLOCK)
    logs = np.log(np.median(told["sm_clock_mhz"][blocks], axis=1))
    found = cuts(logs, max(deviation_of(logs), _LEAST_NOISE))
    if not found:
        return {}
    edges = [0, *found, points]
    levels = [float(np.exp(np.median(logs[low:high]))) for low, high in pairwise(edges)]
    high = int(np.argmax(levels[:-1]))
    if levels[-1] > levels[high] * (1 - _LEAST_FALL):
        return {}
    before, after = blocks[edges[high] : edges[high + 1]].ravel(), blocks[edges[-2] :].ravel()
    falls: dict[str, Any] = {
        "clock_before_mhz": levels[high],
        "clock_after_mhz": levels[-1],
        "fell_at_line": int(told["line"][blocks[edges[high + 1]][0]]),
    }
    for name in ("temperature_c", "power_w"):
        for when, at in (("before", before), ("after", after)):
            if np.isfinite(told[name][at]).any():
                falls[f"{name}_{when}"] = float(np.nanmedian(told[name][at]))
    reasons = np.stack([told["power_violation_percent"][after], told["thermal_violation"][after]])
    if np.isfinite(reasons).any():
        falls["told_share"] = float(np.mean(np.nanmax(np.where(np.isfinite(reasons), reasons, 0.0), axis=0) > 0))
    return falls
