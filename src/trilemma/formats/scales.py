"""Scales: from the largest magnitude of a unit to the scale that is stored, and the value the stored scale stands for."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.formats.catalogue import get
from trilemma.formats.elements import Floats, decode, encode
from trilemma.formats.formats import Format

#: How the power-of-two scale of an MX group follows from its largest magnitude.
PowerRule = Literal["floor", "rceil"]
#: Codes that symmetric integers use: all of them, or the same number on both sides of zero.
IntRange = Literal["full", "restricted"]
Stored: TypeAlias = NDArray[Any]

_LEAST = np.float32(2.0**-149)
#: The least E4M3 scale that NVFP4 kernels use: the smallest normal, so that no scale is zero.
_LEAST_E4M3 = np.float32(2.0**-6)


def power_of_two(largest: Floats, element: Format, rule: PowerRule) -> NDArray[np.uint8]:
    """E8M0 codes of MX scales for groups whose largest magnitude is ``largest``, same shape.

    "floor": 2 ** (floor(log2 largest) - floor(log2 element's maximum)), OCP MX v1.0 section 6.3; elements above the
    maximum then saturate (up to 1/8 off for E4M3, 1/4 for E2M1). "rceil": the least power of two that is not below
    largest / maximum, as cvt.rp.satfinite.ue8m0x2 on compute capability 10.x; nothing saturates. NaN gives code 255.
    """
    maximum = element.max_value
    if maximum is None:
        raise InputError(f"{element.name} has no largest value to scale to")
    if rule == "floor":
        exponent = (largest.view(np.uint32) >> 23).astype(np.int32) - int(np.frexp(maximum)[1] - 1)
    elif rule == "rceil":
        bits = (largest / np.float32(maximum)).view(np.uint32)
        mantissa, exponent = bits & 0x7FFFFF, (bits >> 23).astype(np.int32)
        # A subnormal quotient is above 2 ** -127, the value of code 0, when more than its top mantissa bit is set.
        exponent = exponent + np.where(exponent == 0, mantissa > 0x400000, mantissa > 0)
        exponent = np.where(exponent >= 255, 254, exponent)
    else:
        raise InputError(f"scale rule {rule!r} is not known; use floor or rceil")
    return np.where(np.isnan(largest), 255, np.clip(exponent, 0, 254)).astype(np.uint8)


def reciprocal_power(codes: NDArray[np.uint8]) -> Floats:
    """1 / scale of E8M0 codes, exact; 0 for NaN, so that no element of such a group gets a code of its own."""
    return np.where(codes == 255, np.float32(0), np.ldexp(np.float32(1), 127 - codes.astype(np.int32))).astype(
        np.float32
    )


def store(exact: Floats, fmt: Format) -> Stored:
    """``exact`` scales as ``fmt`` stores them (FP32, FP16, BF16 or E4M3); units of zeros get the scale 1, or the least of E4M3.

    Raises `InputError` where a scale does not fit its 16 bits.
    """
    scale = np.where(exact > 0, np.maximum(exact, _LEAST), np.float32(1)).astype(np.float32)
    match fmt.scale_format:
        case "fp32":
            return scale
        case "fp16" | "bf16":
            narrow = get(fmt.scale_format)
            if scale.size and scale.max() > np.float32(narrow.max_value):
                raise InputError(
                    f"a scale of {scale.max():.3g} is above {narrow.max_value:g}, the largest {narrow.name} scale of"
                    f" {fmt.name}; use 32-bit scales (int4_g128_s32) or rescale the tensor"
                )
            # A scale that would round to zero becomes the least one: its unit then flushes to zero instead of dividing by it.
            return encode(np.maximum(scale, np.float32(narrow.smallest_subnormal)), narrow)
        case "fp8_e4m3":
            return encode(np.maximum(exact, _LEAST_E4M3), get("fp8_e4m3"))
    raise InputError(f"{fmt.name} stores scales of {fmt.scale_bits:g} bits in no format known here; use FP32 or FP16")


def value_of(stored: Stored, fmt: Format) -> Floats:
    """FP32 values of stored scales, same shape."""
    if fmt.scale_format == "fp32":
        return stored
    return decode(stored, get(fmt.scale_format))


def integer_bounds(fmt: Format, int_range: IntRange) -> tuple[int, int]:
    """Lowest and highest code of an integer format."""
    bits = int(fmt.bits)
    if not fmt.signed:
        return 0, 2**bits - 1
    high = 2 ** (bits - 1) - 1
    if int_range == "full":
        return -high - 1, high
    if int_range == "restricted":
        return -max(high, 1), max(high, 1)
    raise InputError(f"integer range {int_range!r} is not known; use full or restricted")


def integer_scale(largest: Floats, fmt: Format, int_range: IntRange) -> Floats:
    """Exact symmetric scale: half the range over half the codes ("full": 7.5 for 4 bits, as compressed-tensors and torchao
    have it) or the largest magnitude over the largest code ("restricted": 7, as bitsandbytes and GGUF's Q8_0 have it)."""
    low, high = integer_bounds(fmt, int_range)
    return (largest / np.float32((high - low) / 2)).astype(np.float32)


def affine_scale(low: Floats, high: Floats, fmt: Format) -> tuple[Floats, Floats]:
    """Exact scale and zero point (a float, not yet rounded) that map ``low`` … ``high`` onto all codes."""
    steps = np.float32(2 ** int(fmt.bits) - 1)
    scale = (high - low) / steps
    scale = np.where(scale > 0, np.maximum(scale, _LEAST), np.float32(1)).astype(np.float32)
    return scale, (-low / scale).astype(np.float32)
