"""Which decoder layers each pipeline stage holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.quantities import Numbers


def stage_sizes(layers: int, pp: int) -> list[int]:
    """Layers on each of ``pp`` stages: even, what is left over on the later stages but not the last.

    vllm/distributed/utils.py, get_pp_indices: remaining layers go to the second last stage, the third last, … so that
    the last, which also holds the head, gets none. Raises `InputError` when a stage would be empty.
    """
    if not 1 <= pp <= layers:
        raise InputError(f"--pp {pp} does not fit {layers} layers; use 1 to {layers}")
    sizes = [layers // pp] * pp
    for extra in range(layers % pp):
        sizes[-2 - extra] += 1
    return sizes


def stage_bounds(layers: int, pp: Numbers, stage: str) -> tuple[Any, Any]:
    """(start, stop) layer of the "first", the fullest "middle" or the "last" stage; scalars or arrays (plans,).

    With fewer than three stages the middle is the first.
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
