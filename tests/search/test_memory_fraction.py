"""A memory fraction is advised near the one that was asked for, and inside what starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilemma.search.memory_fraction import advised_fraction


@pytest.mark.parametrize(
    ("bounds", "now", "advised"),
    [
        ((0.21, 0.915), 0.92, 0.86),  # as much as surely starts, not the middle (0.56)
        ((0.74, 0.95), 0.5, 0.79),
        ((0.884, 0.892), 0.92, 0.89),  # narrow: the middle, 0.888, to hundredths
        ((0.8881, 0.8885), 0.92, 0.8883),  # none in hundredths
    ],
)
def test_near_what_was_asked(bounds: tuple[float, float], now: float, advised: float) -> None:
    assert advised_fraction(bounds, now) == pytest.approx(advised)


@given(low=st.floats(0.05, 0.9), width=st.floats(0.001, 0.9), above=st.booleans())
def test_what_is_advised_starts(low: float, width: float, above: bool) -> None:
    high = min(low + width, 0.99)
    assert low - 5e-5 <= advised_fraction((low, high), 1.0 if above else 0.01) <= high + 5e-5
