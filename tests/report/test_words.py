"""Counts in words."""

from __future__ import annotations

import pytest

from trilemma.intervals import student_t_95
from trilemma.quantities import arrivals, counted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 requests"), (1, "1 request"), (1.0, "1 request"), (2, "2 requests"), (131072, "131,072 requests")],
)
def test_one_of_a_thing_reads_as_one(number: float, words: str) -> None:
    assert counted(number, "request") == words


def test_irregular_nouns_and_rates() -> None:
    assert (counted(1, "process", plural="processes"), counted(8, "process", plural="processes")) == (
        "1 process",
        "8 processes",
    )
    assert (arrivals(1), arrivals(1.0), arrivals(2.5)) == (
        "1 request a second",
        "1 request a second",
        "2.5 requests a second",
    )


@pytest.mark.parametrize(
    ("freedom", "point"),
    [(1, 6.3138), (2, 2.9200), (3, 2.3534), (4, 2.1318), (10, 1.8125), (30, 1.6973), (1e9, 1.6449)],
)
def test_points_of_students_t(freedom: float, point: float) -> None:
    """Table of the 95 % point, one-sided (Abramowitz and Stegun, table 26.10)."""
    assert student_t_95(freedom) == pytest.approx(point, rel=3e-3)
