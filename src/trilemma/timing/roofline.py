"""One operator's time from its work: compute and memory joined, each under the ceiling that kernels reach."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.quantities import Numbers

#: Where a format has no peak of its own on a card, the next that can stand for it (wider, never narrower).
_STAND_IN = {"nvfp4": "fp8", "mxfp4": "fp8", "fp8": "bf16", "int8": "bf16", "bf16": "fp16", "fp16": "fp32"}


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
    if np.all(np.isinf(power)):
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


def compute_format(weights: Format, accelerator: Accelerator, *, activation_bits: int | None = None) -> str:
    """The format in which matrix units multiply weights stored as ``weights``.

    Weight-only formats (INT4 and INT3 groups, NF4, GGUF, and any whose ``activation_bits`` are 16) are widened first and
    compute in BF16. FP8 needs FP8 units, else it is widened too (Ampere). NVFP4 needs FP4 units (Hopper widens it to
    BF16); MXFP4 weights meet MXFP8 activations where the card has MX units (FP8's peak bounds them), or 4-bit ones when
    the checkpoint says so.
    """
    stored = weights.name.lower()
    if weights.bits >= 16 or weights.kind in ("codebook", "packed") or (activation_bits or 0) >= 16:
        wanted = "bf16"
    elif stored.startswith("nvfp4"):
        wanted = "nvfp4"
    elif stored.startswith("mxfp4"):
        wanted = "bf16" if not _has_units(accelerator, "mxfp4") else "mxfp4" if activation_bits == 4 else "fp8"
    elif weights.kind == "float" and weights.bits == 8:
        wanted = "fp8"
    elif weights.kind == "int" and weights.bits == 8 and activation_bits == 8:
        wanted = "int8"
    else:
        wanted = "bf16"
    return wanted if wanted == "bf16" or _has_units(accelerator, wanted) else "bf16"


def peak_flops(accelerator: Accelerator, wanted: str) -> float:
    """Dense peak of ``accelerator`` in format ``wanted``, or of the nearest format that can stand for it.

    Raises `InputError` when the data file of the accelerator states no usable peak.

    FLOPs a second, a number. Source: the datasheet named in the accelerator's data file.
    """
    name: str | None = wanted
    while name is not None:
        if name in accelerator.peak_flops:
            return accelerator.peak_flops[name].value
        name = _STAND_IN.get(name)
    raise InputError(
        f"the data file of {accelerator.id} states no peak for {wanted} or anything that stands for it;"
        " add peak_flops.bf16 (or fp16, fp32) to time plans on it"
    )


def _has_units(accelerator: Accelerator, name: str) -> bool:
    return any(known == name or known.startswith(f"{name}_") for known in accelerator.hardware_formats) or (
        name in accelerator.peak_flops and not accelerator.hardware_formats
    )
