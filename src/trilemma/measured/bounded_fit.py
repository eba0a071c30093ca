"""Fitting a handful of bounded numbers to many ratios: robust, deterministic, numpy only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trilemma.quantities import Array

#: Log ratios beyond this count linearly, not squared: a fit follows most rows, not the strangest.
_SOFT = 0.1
_STEP = 1e-4
_LEAST_SECONDS = 1e-12


def fit_log_ratio(
    predict: Callable[[Array], Array],
    measured: Array,
    *,
    start: Array,
    low: Array,
    high: Array,
    iterations: int = 40,
) -> tuple[Array, float]:
    """Values within ``low … high`` that minimise a robust sum over ``log(predict(values) / measured)``, and the mean cost.

    Levenberg-Marquardt (Marquardt 1963) with forward differences, steps cut at the bounds, and the soft-L1 loss
    ``√(1 + (r/0.1)²) − 1``.
    """
    log_measured = np.log(measured)

    def residuals(values: Array) -> Array:
        return np.asarray(np.log(np.maximum(predict(values), _LEAST_SECONDS)) - log_measured, dtype=float)

    values, cost = _descend(residuals, np.clip(start, low, high), low, high, iterations)
    return values, cost / len(measured)


def _descend(
    residuals: Callable[[Array], Array], values: Array, low: Array, high: Array, iterations: int
) -> tuple[Array, float]:
    damping = 1e-2
    error = residuals(values)
    cost = _cost(error)
    slow = 0
    for _ in range(iterations):
        scale = np.maximum(np.abs(values), 1e-3 * np.minimum(high - low, 10.0))
        slopes = _slopes(residuals, values, error, scale, high)
        weights = 1 / np.sqrt(1 + (error / _SOFT) ** 2)
        gradient = slopes.T @ (weights * error)
        curvature = (slopes.T * weights) @ slopes
        stuck = ((values <= low) & (gradient > 0)) | ((values >= high) & (gradient < 0))
        free = np.flatnonzero(~stuck)
        before = cost
        for _ in range(12):
            damped = curvature[np.ix_(free, free)] + damping * np.diag(np.diag(curvature)[free] + 1e-9)
            step = np.zeros_like(values)
            step[free] = -np.linalg.solve(damped, gradient[free])
            tried = np.clip(values + step * scale, low, high)
            tried_error = residuals(tried)
            tried_cost = _cost(tried_error)
            if tried_cost < cost:
                values, error, cost = tried, tried_error, tried_cost
                damping = max(damping / 4, 1e-9)
                break
            damping *= 4
        slow = slow + 1 if before - cost < 5e-4 * before else 0
        if slow >= 2 or cost == before:
            break
    return values, cost


def _slopes(residuals: Callable[[Array], Array], values: Array, error: Array, scale: Array, high: Array) -> Array:
    columns = []
    for at in range(len(values)):
        step = _STEP * scale[at] if values[at] + _STEP * scale[at] <= high[at] else -_STEP * scale[at]
        moved = values.copy()
        moved[at] += step
        columns.append((residuals(moved) - error) / step * scale[at])
    return np.stack(columns, axis=1)


def _cost(error: Array) -> float:
    return float(np.sum(np.sqrt(1 + (error / _SOFT) ** 2) - 1))
