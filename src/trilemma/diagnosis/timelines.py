"""Busy, idle, computing, communicating: lengths of unions of intervals of one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Milliseconds of one span: ``total`` from the first start to the last end, busy + idle = total.

    ``compute`` is the time in which at least one kernel or memset runs that does not communicate, ``exposed_communication``
    the time of communication without it, ``exposed_copy`` that of copies beside neither.
    """

    total_ms: float
    gpu_busy_ms: float
    gpu_idle_ms: float
    compute_ms: float
    communication_ms: float
    exposed_communication_ms: float
    copy_ms: float
    exposed_copy_ms: float


def timeline(starts: Times, ends: Times, work: NDArray[np.int8]) -> Timeline:
    """``starts`` and ``ends`` in microseconds, arrays (events,); ``work`` 0 computes, 1 communicates, 2 copies."""
    computing = merged(starts[work == 0], ends[work == 0])
    communicating = merged(starts[work == 1], ends[work == 1])
    copying = merged(starts[work == 2], ends[work == 2])
    both = merged(*(np.concatenate(pair) for pair in zip(computing, communicating, strict=True)))
    every = merged(*(np.concatenate(pair) for pair in zip(both, copying, strict=True)))
    total = float(ends.max() - starts.min())
    busy = _length(every)
    return Timeline(
        total_ms=total / 1e3,
        gpu_busy_ms=busy / 1e3,
        gpu_idle_ms=(total - busy) / 1e3,
        compute_ms=_length(computing) / 1e3,
        communication_ms=_length(communicating) / 1e3,
        exposed_communication_ms=(_length(both) - _length(computing)) / 1e3,
        copy_ms=_length(copying) / 1e3,
        exposed_copy_ms=(busy - _length(both)) / 1e3,
    )


def merged(starts: Times, ends: Times) -> tuple[Times, Times]:
    """The disjoint intervals that cover the same time, in order."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    new = np.concatenate(([True], starts[1:] > ends[:-1]))
    lasts = np.concatenate((np.flatnonzero(new)[1:] - 1, [len(starts) - 1]))
    return starts[new], ends[lasts]


def _length(intervals: tuple[Times, Times]) -> Any:
    return float((intervals[1] - intervals[0]).sum())
