"""The memory fraction that is advised where the one asked for does not start."""

from __future__ import annotations

from collections.abc import Sequence

#: How far inside the bounds of what starts: what the bounds leave out is known to a few hundredths of a card.
_INWARD = 0.05


def advised_fraction(bounds: Sequence[float], now: float) -> float:
    """The fraction nearest to ``now`` that lies well inside ``bounds``, the least and the most that start; the middle of narrow
    ones."""
    low, high = bounds
    inward = min(_INWARD, (high - low) / 2)
    share = high - inward if now > high else low + inward
    return round(share, 2) if low <= round(share, 2) <= high else round(share, 4)
