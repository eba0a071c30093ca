"""Figures of many requests: exact while they are few, in narrow bins when they are not."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

import numpy as np

#: Values that are kept one by one; beyond, all go to bins.
MOST_KEPT = 2**21
#: Bins of a doubling: a value is off by at most 0.07 %.
_BINS = 512
_LEAST = 1e-9
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


class Samples:
    """Values of one figure with their mean and percentiles; ``add`` takes one, ``add_many`` the same one many times."""

    __slots__ = ("_bins", "_kept", "_most", "count", "largest", "total")

    def __init__(self, *, binned: bool = False) -> None:
        self._kept = array("d")
        self._bins: dict[int, int] = {}
        self._most = 0 if binned else MOST_KEPT
        self.count, self.total, self.largest = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        if value > self.largest:
            self.largest = value
        if self._most:
            self._kept.append(value)
            if self.count >= self._most:
                self._to_bins()
        else:
            at = int(math.log2(value if value > _LEAST else _LEAST) * _BINS) if value > 0 else _ZERO
            self._bins[at] = self._bins.get(at, 0) + 1

    def add_many(self, value: float, times: int) -> None:
        """``times`` values alike; of a figure that is binned from the start."""
        self.count += times
        self.total += value * times
        if value > self.largest:
            self.largest = value
        at = int(math.log2(value if value > _LEAST else _LEAST) * _BINS)
        self._bins[at] = self._bins.get(at, 0) + times

    def summary(self) -> Mapping[str, float]:
        """Mean and `PERCENTILES`; empty where there is no value."""
        if not self.count:
            return {}
        return {"mean": self.total / self.count} | self.percentiles(PERCENTILES)

    def percentiles(self, wanted: Mapping[str, float]) -> dict[str, float]:
        if self._most:
            values = np.percentile(np.frombuffer(self._kept), list(wanted.values()))
            return dict(zip(wanted, map(float, values), strict=True))
        bins = sorted(self._bins)
        upto = np.cumsum([self._bins[at] for at in bins])
        places = np.searchsorted(upto, np.array(list(wanted.values())) / 100 * self.count, side="left")
        return {
            name: min(_middle(bins[min(int(place), len(bins) - 1)]), self.largest)
            for name, place in zip(wanted, places, strict=True)
        }

    def _to_bins(self) -> None:
        values = np.frombuffer(self._kept)
        places = np.trunc(np.log2(np.maximum(values, _LEAST)) * _BINS).astype(int)
        places[values <= 0] = _ZERO
        for at, times in zip(*np.unique(places, return_counts=True), strict=True):
            self._bins[int(at)] = int(times)
        self._kept, self._most = array("d"), 0


#: The bin of nothing.
_ZERO = -(10**6)


def _middle(at: int) -> float:
    if at == _ZERO:
        return 0.0
    return float(2.0 ** ((at + (0.5 if at >= 0 else -0.5)) / _BINS))
