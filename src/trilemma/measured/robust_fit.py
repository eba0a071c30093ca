"""Least squares with priors and bounded pull of outliers, by Gauss-Newton steps with damping (Levenberg 1944, Marquardt 1963)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trilemma.quantities import Array

#: Steps from the priors, and from an optimum nearby (the same fit without some rows).
_MOST_ROUNDS, _NEAR_ROUNDS = 60, 6


def robust_fit(
    errors_of: Callable[[Array], Array],
    slopes_of: Callable[[Array], Array],
    start: Array,
    spread: Array,
    *,
    weights: Array,
    noise: float,
    first: Array | None = None,
) -> Array:
    """Parameters that minimise ``Σ w·ρ(error/noise) + Σ ((θ − start)/spread)²`` with ``ρ(z) = 2(√(1 + z²) − 1)``.

    ``errors_of`` maps parameters (n,) to errors (rows,), ``slopes_of`` to their derivatives (rows, n); ``start`` and
    ``spread`` are the priors' means and deviations (n,). The search begins at the priors, or at ``first``: an optimum of nearly
    the same rows, from which few steps are needed.
    """
    theta = start.copy() if first is None else first.copy()
    damping = 1e-2
    cost = _cost(errors_of(theta), theta, start, spread, weights, noise)
    for _ in range(_MOST_ROUNDS if first is None else _NEAR_ROUNDS):
        errors = errors_of(theta)
        slopes = slopes_of(theta)
        pull = weights / noise**2 / np.sqrt(1 + (errors / noise) ** 2)
        normal = slopes.T @ (pull[:, None] * slopes) + np.diag(1 / spread**2)
        gradient = slopes.T @ (pull * errors) + (theta - start) / spread**2
        for _ in range(12):
            moved = theta - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            new = _cost(errors_of(moved), moved, start, spread, weights, noise)
            if new < cost:
                break
            damping *= 4
        else:
            return theta
        done = cost - new < 1e-5 * cost
        theta, cost, damping = moved, new, damping / 3
        if done:
            return theta
    return theta


def _cost(errors: Array, theta: Array, start: Array, spread: Array, weights: Array, noise: float) -> float:
    pull = 2 * (np.sqrt(1 + (errors / noise) ** 2) - 1)
    return float((weights * pull).sum() + (((theta - start) / spread) ** 2).sum())
