"""What a look-up would say: one efficiency per GPU, framework, precision and model, from the other configurations.

Printed beside ours: a model of time has to beat a memory of runs where there is one, and to answer where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineRun:
    """One measured configuration: ``keys`` from narrow to wide, FLOPs per token, tokens per second and GPU."""

    config: str
    keys: tuple[tuple[str, ...], ...]
    flops_per_token: float
    tokens_per_s_per_gpu: float


def baseline(entries: Sequence[BaselineRun]) -> Mapping[str, float]:
    """Tokens per second and GPU of each configuration from the geometric mean efficiency of others under the narrowest key
    that any other has; a configuration that stands alone under every key has none."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for entry in entries:
        for key in entry.keys:
            sums.setdefault(key, []).append(_log(entry))
    found = {}
    for entry in entries:
        for key in entry.keys:
            others = len(sums[key]) - 1
            if others > 0:
                mean = (sum(sums[key]) - _log(entry)) / others
                found[entry.config] = float(np.exp(mean) / entry.flops_per_token)
                break
    return found


def _log(entry: BaselineRun) -> float:
    return float(np.log(entry.flops_per_token * entry.tokens_per_s_per_gpu))
