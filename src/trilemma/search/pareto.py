"""The plans that no other plan beats on every count."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pareto_front(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of ``points`` (plans, axes; larger is better on each) are on the Pareto front.

    A point is beaten when another is at least as good on every axis and better on one; equal points stay together.
    Points are tried from the best sum of ranks on, so that most fall in the first passes: about plans × front size.
    """
    points = np.asarray(points, dtype=float)
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
