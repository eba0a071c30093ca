"""Fewer GPUs than these cannot do it: roofs of the datasheet, so that cards that cannot win are never searched."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import Model
from trilemma.models.parameters import count, weight_bytes
from trilemma.search.precisions import WeightPrecision
from trilemma.workloads import Serving, TrainingWorkload

#: Bytes that each trained parameter takes at the very least: weight and gradient of two bytes, no state of an optimizer.
_TRAINED_BYTES = 4.0
#: Bytes of a frozen parameter at the very least, by method: quantised to four bits, else as it is.
_FROZEN_BYTES = {"qlora": 0.5}
#: FLOPs of a parameter and token: forward alone, and with the backward pass (Kaplan et al. 2020, section 2.1).
_FORWARD, _TRAINED, _FROZEN = 2.0, 6.0, 4.0


def least_for_serving(stored: Sequence[WeightPrecision], card: Accelerator, workload: Serving) -> int:
    """GPUs below which no engine serves the load: the lightest of the weights ``stored`` on the cards, and the products of all
    tokens that arrive in a second at the highest peak of the card."""
    lightest = min(weight_bytes(one.model) for one in stored)
    capacity = card.runtime_total().high
    active = min(count(one.model).active - count(one.model).embedding for one in stored)
    tokens_per_s = 0.0
    if workload.rate is not None:
        prompt = (workload.isl or 0) * (1 - workload.prefix_hit)
        tokens_per_s = workload.rate * (prompt + (workload.osl or 0))
    elif workload.concurrency is not None and workload.tpot_ms is not None:
        tokens_per_s = workload.concurrency / workload.tpot_ms * 1e3
    peak = _highest_peak(card)
    busy = _FORWARD * active * tokens_per_s / peak if peak else 0.0
    return max(1, math.ceil(lightest / capacity), math.ceil(busy - 1e-9))


def least_for_training(model: Model, card: Accelerator, workload: TrainingWorkload, days: float | None) -> int:
    """GPUs below which no layout trains the model: bytes of its weights and gradients, and with a length of the run its
    products at the highest peak within ``days``."""
    parameters = count(model)
    adapters = workload.trains_adapters
    each = _FROZEN_BYTES.get(workload.method, 2.0) if adapters else _TRAINED_BYTES
    needed = math.ceil(each * parameters.total / card.runtime_total().high)
    peak, busy = _highest_peak(card), 0.0
    if days is not None and workload.tokens is not None and peak:
        flops = (_FROZEN if adapters else _TRAINED) * (parameters.active - parameters.embedding) * workload.tokens
        busy = flops / peak / (days * 86400)
    return max(1, needed, math.ceil(busy - 1e-9))


def _highest_peak(card: Accelerator) -> float:
    return max((figure.value for figure in card.peak_flops.values()), default=0.0)
