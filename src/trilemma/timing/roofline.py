"""One operator's time from its work: compute and memory joined, each under the ceiling that kernels reach."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.formats.computing import stands_for
from trilemma.hardware.accelerator import Accelerator
from trilemma.quantities import Numbers


def operator_time_s(
    flops: Numbers, n_bytes: Numbers, *, flops_per_s: Numbers, bytes_per_s: Numbers, power: Numbers = np.inf
) -> Any:
    """Seconds of one operator whose arithmetic and traffic overlap, each at the rate that kernels reach.

    The ``power``-norm of ``flops / flops_per_s`` and ``n_bytes / bytes_per_s``. Infinite power is the roofline
    ``max(compute, memory)`` (Williams, Waterman, Patterson 2009, eq. 1); a finite one rounds the ridge, where real kernels
    are slower than either bound. Arrays broadcast.
    """
    compute_s, memory_s = flops / flops_per_s, n_bytes / bytes_per_s
    larger = np.maximum(compute_s, memory_s)
    if math.isinf(power) if isinstance(power, float) else np.all(np.isinf(power)):
        return larger
    ratio = np.minimum(compute_s, memory_s) / np.where(larger > 0, larger, 1.0)
    return larger * (1.0 + ratio**power) ** (1.0 / power)


def is_compute_bound(flops: Numbers, n_bytes: Numbers, *, flops_per_s: float, bytes_per_s: float) -> Any:
    """Whether an operator lies right of the ridge, where arithmetic takes longer than traffic.

    FLOPs and bytes, numbers or arrays that broadcast (Williams, Waterman, Patterson 2009).
    """
    return flops * bytes_per_s > n_bytes * flops_per_s


def ridge_flops_per_byte(accelerator: Accelerator, compute_format: str) -> float:
    """FLOPs per byte at which ``accelerator`` turns from memory bound to compute bound (H100 SXM, BF16: 295).

    A number: the ridge of Williams, Waterman, Patterson 2009.
    """
    return peak_flops(accelerator, compute_format) / accelerator.bandwidth_bytes_per_s.value


def peak_flops(accelerator: Accelerator, wanted: str) -> float:
    """Dense peak of ``accelerator`` in format ``wanted``, or of the nearest format that can stand for it.

    Raises `InputError` when the data file of the accelerator states no usable peak.

    FLOPs a second, a number. Source: the datasheet named in the accelerator's data file.
    """
    for name in stands_for(wanted):
        if name in accelerator.peak_flops:
            return accelerator.peak_flops[name].value
    raise InputError(
        f"the data file of {accelerator.id} states no peak for {wanted} or anything that stands for it;"
        " add peak_flops.bf16 (or fp16, fp32) to time plans on it"
    )
