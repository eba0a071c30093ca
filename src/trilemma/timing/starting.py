"""How long an engine takes until it answers: weights read and placed, graphs compiled and captured, the rest, each with a range.

The numbers stand in ``data/coefficients/start_up_time.toml`` with the logs that they were read from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.intervals import Interval
from trilemma.quantities import GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class StartPhase:
    """One phase of a start-up: its ``name`` and seconds."""

    name: str
    seconds: Interval


@cache
def starting_data() -> Mapping[str, Any]:
    """The numbers of the phases and the logs behind them, as shipped."""
    return read_data("coefficients/start_up_time.toml")


def figure(phase: str, times: float = 1.0) -> Interval:
    """A number of the phases with its range, ``times`` as much.

    Seconds, GiB a second or a share, as its name says. Source: start_up_time.toml.
    """
    row = starting_data()["phases"][phase]
    value = row["middle"] * times
    return Interval(value=value, low=value * float(np.exp(-row["half"])), high=value * float(np.exp(row["half"])))


def reading_s(n_bytes: float, storage_bytes_per_s: float | None) -> Interval:
    """Seconds in which the cards of a node have ``n_bytes`` of weights: as fast as the storage, where it is known, and no faster
    than what was in memory before.

    Bytes and bytes a second, numbers. Source: start_up_time.toml; without a rate the range holds storage of every kind.
    """
    cached = figure("cached_gib_per_s", GIB)
    if storage_bytes_per_s is None:
        read = figure("read_gib_per_s", GIB)
        # nothing is read faster than it is copied
        fastest = n_bytes / max(cached.high, read.value)
        return Interval(value=n_bytes / read.value, low=fastest, high=n_bytes / read.low)
    slow, fast = (min(storage_bytes_per_s, rate) for rate in (cached.low, cached.high))
    return Interval(value=n_bytes / min(storage_bytes_per_s, cached.value), low=n_bytes / fast, high=n_bytes / slow)


def placing_s(reading: Interval) -> Interval:
    """Seconds in which modules are made and weights repacked, beside those in which they are read: a share of them.

    Seconds, numbers. Source: start_up_time.toml.
    """
    share = figure("placed_share")
    return Interval(value=reading.value * share.value, low=reading.value * share.low, high=reading.value * share.high)


def together_s(phases: tuple[StartPhase, ...]) -> Interval:
    """Seconds of all ``phases``, whose errors are taken for independent.

    Numbers. Source: by definition; widths join as roots of sums of squares.
    """
    value = sum(one.seconds.value for one in phases)
    down, up = (
        float(np.sqrt(sum((getattr(one.seconds, end) - one.seconds.value) ** 2 for one in phases)))
        for end in ("low", "high")
    )
    least = sum(one.seconds.low for one in phases)
    return Interval(value=value, low=max(value - down, least), high=value + up)
