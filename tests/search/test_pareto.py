"""The front against its definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trilemma.search import pareto_front


def by_definition(points):
    return np.array(
        [not any(np.all(other >= point) and np.any(other > point) for other in points) for point in points], dtype=bool
    )


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=40))
def test_front_is_what_nothing_beats(rows):
    points = np.array(rows, dtype=float).reshape(-1, 3)
    np.testing.assert_array_equal(pareto_front(points), by_definition(points))


def test_two_axes_by_hand():
    points = np.array([[3, 1], [2, 2], [1, 3], [2, 1], [1, 1], [2, 2]], dtype=float)
    assert pareto_front(points).tolist() == [True, True, True, False, False, True]


def test_nothing_has_no_front():
    assert pareto_front(np.zeros((0, 2))).shape == (0,)


def test_what_differs_by_rounding_alone_is_equal():
    points = np.array([[569.0, 35.8], [539.0, 35.8 * (1 + 1e-13)], [530.0, 35.8 * (1 + 1e-6)]])
    assert pareto_front(points).tolist() == [True, False, True]
