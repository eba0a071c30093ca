"""Energy over a window of samples: the trapezoids of each card, or why there is no figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

EnergyFault = Literal[
    "no_samples", "cards_missing", "not_covered", "gap", "not_a_power", "clock_backwards", "window_too_short"
]
#: A window is told only where no card is unseen for longer than this, and where it holds as many samples.
MOST_GAP_S, _FEWEST = 2.0, 3
#: More than any card draws; a reading above is a broken one.
_MOST_W = 10_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CardPower:
    """What one card drew: ``watts`` at ``times_s``, seconds of one clock."""

    card: str
    times_s: tuple[float, ...]
    watts: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyOfCard:
    card: str
    joules: float
    mean_w: float
    samples: int
    longest_gap_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyWindow:
    """Joules of all cards over ``seconds``; without a figure where ``fault`` says why, ``detail`` with what was found.

    ``cards`` were expected; ``each`` holds those that were seen.
    """

    seconds: float
    cards: int
    joules: float | None = None
    mean_w: float | None = None
    fault: EnergyFault | None = None
    detail: str = ""
    each: tuple[EnergyOfCard, ...] = ()


def energy_over(
    power: Sequence[CardPower], *, start_s: float, end_s: float, cards: int, most_gap_s: float = MOST_GAP_S
) -> EnergyWindow:
    """Joules from ``start_s`` to ``end_s`` of ``cards`` cards.

    The integral of power by trapezoids, with power at both ends of the window from the line between the samples around them.
    There is no figure where a card is missing, where samples do not reach the ends, are farther apart than ``most_gap_s``, go
    back in time or are no power: half a sum would pass for a saving.

    Watts and seconds in, joules out (W·s). Source: the trapezoidal rule; NVML's power is a mean over the last 25 ms to 1 s
    (Yang, Adamek and Armour 2023, arXiv:2312.02741), so windows shorter than a few samples are refused.
    """
    seconds = end_s - start_s

    def refused(fault: EnergyFault, detail: str) -> EnergyWindow:
        return EnergyWindow(seconds=max(seconds, 0.0), cards=cards, fault=fault, detail=detail)

    if not seconds > 0:
        return refused("window_too_short", f"from {start_s:g} to {end_s:g} s")
    if not any(one.times_s for one in power):
        return refused("no_samples", "no card told its power")
    seen = {one.card for one in power if one.times_s}
    if len(seen) != cards:
        return refused("cards_missing", f"{len(seen)} of {cards} cards told their power")
    each = []
    for one in power:
        found = _of_card(one, start_s, end_s, most_gap_s)
        if isinstance(found, tuple):
            return refused(found[0], f"card {one.card}: {found[1]}")
        each.append(found)
    joules = math.fsum(one.joules for one in each)
    return EnergyWindow(seconds=seconds, cards=cards, joules=joules, mean_w=joules / seconds, each=tuple(each))


def _of_card(one: CardPower, start_s: float, end_s: float, most_gap_s: float) -> EnergyOfCard | tuple[EnergyFault, str]:
    times, watts = np.asarray(one.times_s, dtype=float), np.asarray(one.watts, dtype=float)
    if not (np.all(np.isfinite(watts)) and np.all((watts >= 0) & (watts <= _MOST_W))):
        return "not_a_power", f"{watts[~((watts >= 0) & (watts <= _MOST_W))][0]:g} W"
    if np.any(np.diff(times) <= 0):
        return "clock_backwards", f"at {times[:-1][np.diff(times) <= 0][0]:g} s"
    if times[0] > start_s + most_gap_s or times[-1] < end_s - most_gap_s:
        return (
            "not_covered",
            f"samples from {times[0] - start_s:+.2f} to {times[-1] - end_s:+.2f} s about the window's ends",
        )
    inside = (times > start_s) & (times < end_s)
    if inside.sum() < _FEWEST:
        return "window_too_short", f"{inside.sum()} samples within {end_s - start_s:.2f} s"
    at = np.concatenate([[start_s], times[inside], [end_s]])
    gap_s = float(np.diff(at).max())
    if gap_s > most_gap_s:
        return "gap", f"{gap_s:.2f} s without a sample, more than {most_gap_s:g} s"
    drawn_w = np.interp(at, times, watts)
    joules = float(np.sum(np.diff(at) * (drawn_w[1:] + drawn_w[:-1]) / 2))
    return EnergyOfCard(
        card=one.card, joules=joules, mean_w=joules / (end_s - start_s), samples=int(inside.sum()), longest_gap_s=gap_s
    )


def by_card(samples: Sequence[tuple[float, Mapping[str, float]]]) -> tuple[CardPower, ...]:
    """Samples of all cards at a time, as a series of each card."""
    names = dict.fromkeys(name for _, watts in samples for name in watts)
    return tuple(
        CardPower(
            card=name,
            times_s=tuple(at for at, watts in samples if name in watts),
            watts=tuple(watts[name] for _, watts in samples if name in watts),
        )
        for name in names
    )
