"""Which decoder layers each pipeline stage holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.plans.pipeline import stage_sizes
from trilemma.quantities import Numbers


def stage_bounds(layers: int, pp: Numbers, stage: str) -> tuple[Any, Any]:
    """(start, stop) layer of the "first", the fullest "middle" or the "last" stage; scalars or arrays (plans,).

    With fewer than three stages the middle is the first.

    Layers are dealt out as by vLLM's distributed/utils.py (get_pp_indices).
    """
    degrees, where = np.unique(np.asarray(pp), return_inverse=True)
    bounds = []
    for degree in degrees.tolist():
        sizes = stage_sizes(layers, degree)
        index = {"first": 0, "last": degree - 1}.get(stage, 0)
        if stage == "middle" and degree > 2:
            index = max(range(1, degree - 1), key=sizes.__getitem__)
        start = sum(sizes[:index])
        bounds.append((start, start + sizes[index]))
    table = np.asarray(bounds)[where.reshape(np.shape(pp))]
    return table[..., 0], table[..., 1]
