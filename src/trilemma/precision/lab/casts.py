"""Casts of FP32 tensors to narrow floats and back: real torch casts for FP16, BF16 and FP8, a grid for the rest.

What overflow becomes is said by the caller, since libraries differ: torch saturates E4M3 since 2.12 and made NaN before.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch

from trilemma.formats.catalogue import get
from trilemma.precision.lab.recipes import Overflow

Tensor: TypeAlias = torch.Tensor

_FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
#: The largest FP32 number that still rounds to the largest of the format: a tie goes to the even mantissa, which is 448
#: in E4M3 and the number beyond 57344 in E5M2.
_LARGEST_KEPT = {"fp8_e4m3": 464.0, "fp8_e5m2": 61440.0 - 2.0**-8}
#: Sign and magnitude of E4M3 where FP32 has sign and exponent: 0x87F00000 as a signed number.
_E4M3_IN_FP32 = 0x87F00000 - (1 << 32)


def cast(
    values: Tensor, name: str, *, overflow: Overflow = "saturate", generator: torch.Generator | None = None
) -> Tensor:
    """What FP32 ``values`` are after a cast to the format ``name`` and back to FP32, same shape.

    With ``generator`` rounding is stochastic, else to nearest, ties to even. BF16 and FP16 overflow to infinity, FP4
    saturates, FP8 does as ``overflow`` says. NaN stays NaN.
    """
    if name == "bf16" and generator is None:
        return values.bfloat16().float()
    if name == "fp16":
        return values.half().float()
    if generator is not None or name not in _FP8:
        return _beyond(round_to_grid(values, name, generator=generator), values, name, overflow)
    largest = largest_value(name)
    # A sum is the cheapest way to know that NaN may be among the values; the fast way back would lose it.
    decode = _decode_exactly if math.isnan(float(values.sum())) else _decode
    kept = decode(values.clamp(-largest, largest).to(_FP8[name]))
    return _beyond(kept, values, name, overflow)


def largest_value(name: str) -> float:
    """The largest finite number of the format."""
    largest = get(name).max_value
    assert largest is not None, name
    return largest


def round_to_grid(values: Tensor, name: str, *, generator: torch.Generator | None = None) -> Tensor:
    """``values`` on the grid of a float format; those beyond the range of one below 16 bits become its largest number.

    Rounds to nearest even, or with ``generator`` up with the probability of the distance passed.
    """
    fmt = get(name)
    assert fmt.mantissa_bits is not None
    assert fmt.bias is not None
    # The exponent bits alone are the power of two below; the step is that power over the mantissa's range.
    power = (values.view(torch.int32) & 0x7F800000).view(torch.float32)
    step = power.clamp_min(2.0 ** (1 - fmt.bias)) * 2.0**-fmt.mantissa_bits
    scaled = values / step
    if generator is None:
        rounded = scaled.round_()
    else:
        rounded = scaled.add_(torch.rand(values.shape, generator=generator, device=values.device)).floor_()
    kept = rounded.mul_(step)
    return kept.clamp_(-largest_value(name), largest_value(name)) if fmt.bits < 16 else kept


def _beyond(kept: Tensor, values: Tensor, name: str, overflow: Overflow) -> Tensor:
    if overflow == "nan" and name in _LARGEST_KEPT:
        return kept.masked_fill_(values.abs() > _LARGEST_KEPT[name], math.nan)
    return kept


def _decode_exactly(codes: Tensor) -> Tensor:
    return codes.float()


def _decode(codes: Tensor) -> Tensor:
    """FP32 values of FP8 ``codes`` without NaN, what ``codes.float()`` gives: torch's own way back takes five times as long."""
    if codes.device.type != "cpu":
        return codes.float()
    if codes.dtype == torch.float8_e5m2:
        return (codes.view(torch.int8).to(torch.int16) << 8).view(torch.float16).float()
    wide = codes.view(torch.int8).to(torch.int32)
    wide <<= 20
    wide &= _E4M3_IN_FP32
    # 2 ** 120 moves the bias of E4M3 (7) to that of FP32 (127), subnormals included.
    return wide.view(torch.float32).mul_(2.0**120)
