"""The plans that no other plan beats on every count."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Digits to which points are compared.
_DIGITS = 9


def pareto_front(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of ``points`` (plans, axes; larger is better on each) are on the Pareto front.

    A point is beaten when another is at least as good on every axis and better on one; equal points stay together. What differs
    by less than roots are found to is equal.
    Points are tried from the best sum of ranks on, so that most fall in the first passes: about plans × front size.
    """
    mantissas, exponents = np.frexp(np.asarray(points, dtype=float))
    points = np.ldexp(np.round(mantissas, _DIGITS), exponents)
    count = len(points)
    alive = np.ones(count, dtype=bool)
    if not count:
        return alive
    order = np.argsort(-points.argsort(axis=0).argsort(axis=0).sum(axis=1), kind="stable")
    ranked = points[order]
    for at in range(count):
        if not alive[at]:
            continue
        beaten = np.all(ranked <= ranked[at], axis=1) & np.any(ranked < ranked[at], axis=1)
        alive &= ~beaten
    front = np.zeros(count, dtype=bool)
    front[order] = alive
    return front


def front_of_two(points: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices of the `pareto_front` of ``points`` (plans, 2), best on the first axis first; of equal points the first.

    Sorted by one axis, a point is beaten where an earlier one is as good on the other.
    """
    order = np.lexsort((-points[:, 1], -points[:, 0]))
    second = points[order, 1]
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(second)[:-1]]) if len(order) else second
    return np.asarray(order[second > best_before], dtype=np.int64)
