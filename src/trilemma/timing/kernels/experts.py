"""Grouped products of a mixture: the experts that a batch wakes, their rows padded to tiles, routing skew and ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.quantities import Numbers
from trilemma.timing.kernels.fitted import KernelCoefficients, Parameter
from trilemma.timing.kernels.shapes import MEGA, MICRO, rounded_max

PARAMETERS = (
    Parameter(name="compute_share", start=0.6, low=0.02, high=1.0, meaning="share of the dense peak inside a large tile"),
    Parameter(name="tile_loss", start=0.3, low=0.0, high=8.0, meaning="operand traffic of small tiles: 64 / rows"),
    Parameter(name="stream_share", start=0.8, low=0.05, high=1.1, meaning="share of bandwidth at which experts stream"),
    Parameter(name="fixed_us", start=20.0, low=0.1, high=300.0, meaning="microseconds of any launch, routing included"),
    Parameter(name="overlap_power", start=2.0, low=1.0, high=20.0, meaning="norm that joins arithmetic and streaming"),
    Parameter(name="activation_passes", start=1.0, low=0.0, high=30.0, meaning="passes over routed activations"),
    Parameter(name="active_shrink", start=0.8, low=0.05, high=3.0, meaning="rate at which skewed rows wake experts"),
    Parameter(name="rank_load_power", start=0.3, low=0.0, high=1.0, meaning="growth of the busiest rank's load with skew"),
    Parameter(name="expert_us", start=0.02, low=0.0, high=2.0, meaning="microseconds of each expert held"),
    Parameter(name="ramp_mb", start=1.0, low=0.0, high=100.0, meaning="megabytes that the start of a stream costs"),
)  # fmt: skip

_TILE_ROWS = (16, 32, 64, 128)
_ACTIVATION_BYTES = 2.0


def experts_s(
    c: KernelCoefficients,
    tokens: Numbers,
    hidden: Numbers,
    inter: Numbers,
    top_k: Numbers,
    experts: Numbers,
    *,
    tp: Numbers = 1,
    ep: Numbers = 1,
    skew: Numbers = 0.0,
    matrices: Numbers = 3,
) -> Any:
    """Seconds of one layer's routed experts on the busiest of ``tp × ep`` ranks.

    ``tokens`` are those of the whole group before routing; every rank holds ``experts / ep`` experts of ``inter / tp``
    columns. ``skew`` is the exponent of a power law over experts (0: every expert gets equally many rows; serving traces
    lie near 1). ``matrices`` is 3 for gated experts, 2 for plain ones. Weights of experts that no row meets are not read:
    balanced rows wake ``min(held, rows)`` of them, skewed ones ``held · (1 − exp(−shrink · rows / held))``.

    Numbers or arrays that broadcast. By definition a grouped product; its rates are fitted (``data/coefficients``,
    source named there).
    """
    tokens, hidden, top_k, experts = (np.asarray(x, dtype=float) for x in (tokens, hidden, top_k, experts))
    tp, ep, skew = (np.asarray(x, dtype=float) for x in (tp, ep, skew))
    columns, held = np.asarray(inter, dtype=float) / tp, experts / ep
    rows = tokens * top_k / ep * ep ** (c["rank_load_power"] * skew)
    rows = np.maximum(np.minimum(rows, tokens * np.minimum(top_k, held)), 1.0)
    active = active_experts(rows, held, skew, c["active_shrink"])
    compute_s = _compute_s(c, rows / active, active, 2.0 * matrices * hidden * columns)
    weights = active * matrices * hidden * columns * c.weight_bytes
    memory_s = (weights + c["ramp_mb"] * MEGA) / (c["stream_share"] * c.bytes_per_s)
    activations = _ACTIVATION_BYTES * (rows * (2 * hidden + matrices * columns) + 2 * tokens * hidden)
    fixed_s = (c["fixed_us"] + c["expert_us"] * held) * MICRO
    return (
        fixed_s
        + rounded_max(compute_s, memory_s, c["overlap_power"])
        + c["activation_passes"] * activations / c.bytes_per_s
    )


def active_experts(rows: Numbers, held: Numbers, skew: Numbers, shrink: float) -> Any:
    """Distinct experts of ``held`` that ``rows`` routed rows wake.

    A count, numbers or arrays that broadcast. By definition of equal rows; skewed ones as balls thrown into bins
    (Mitzenmacher and Upfal 2005, section 5.2).
    """
    rows, held = np.asarray(rows, dtype=float), np.asarray(held, dtype=float)
    spread = np.maximum(held * -np.expm1(-shrink * rows / held), 1.0)
    return np.where(np.asarray(skew) > 0, np.minimum(spread, rows), np.minimum(held, rows))


def _compute_s(c: KernelCoefficients, rows_each: Any, active: Any, flops_per_row: Any) -> Any:
    best: Any = np.inf
    for tile in _TILE_ROWS:
        padded = active * np.ceil(rows_each / tile) * tile
        rate = c["compute_share"] * c.flops_per_s / (1 + c["tile_loss"] * 64 / tile)
        best = np.minimum(best, padded * flops_per_row / rate)
    return best
