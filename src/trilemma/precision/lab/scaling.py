"""Scales: how each recipe brings a tensor into the range of its format, and what the cast then keeps of it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch.nn import functional

from trilemma.precision.lab.casts import cast, largest_value
from trilemma.precision.lab.recipes import LabRecipe, Overflow

Tensor: TypeAlias = torch.Tensor

#: Rows and columns that share a scale, for activations and gradients, and for weights. Sources: DeepSeek-V3 report
#: (arXiv:2412.19437, section 3.3) and Transformer Engine's Float8BlockScaling for "block"; OCP MX v1.0 for "mx";
#: Transformer Engine's NVFP4BlockScaling for "nvfp4".
_BLOCKS = {"block": ((1, 128), (128, 128)), "mx": ((1, 32), (1, 32)), "nvfp4": ((1, 16), (16, 16))}
#: Scales are FP32: a larger one is infinite, and Transformer Engine then scales by 1.
_LARGEST_SCALE = 2.0**127
_SMALLEST_NORMAL_E4M3 = 2.0**-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """``values`` after scaling, cast and back, FP32, same shape; ``limit``: the largest magnitude that could be held, a
    number or a tensor of the same shape."""

    values: Tensor
    limit: float | Tensor


@dataclass(kw_only=True, slots=True)
class AmaxHistory:
    """Largest magnitudes of one tensor in earlier steps, from which delayed scaling takes its scale.

    Transformer Engine's rule (``common/recipe``, DelayedScaling): scale = maximum of the format / amax / 2 ** margin, with
    amax the largest or the newest of the history; 1 while nothing above zero was seen.
    """

    length: int
    seen: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.seen = deque(maxlen=self.length)

    def scale(self, largest: float, *, rule: str, margin: int) -> float:
        amax = (max(self.seen) if rule == "max" else self.seen[-1]) if self.seen else 0.0
        if not (0 < amax < math.inf):
            return 1.0
        scale = largest / amax / 2.0**margin
        return scale if scale < _LARGEST_SCALE else 1.0

    def add(self, amax: float) -> None:
        self.seen.append(amax)


def keep_per_tensor(
    values: Tensor, name: str, *, scale: float, overflow: Overflow, generator: torch.Generator | None = None
) -> Kept:
    """``values`` under one scale: multiplied, cast to the format ``name``, divided again."""
    if scale == 1.0:
        return Kept(values=cast(values, name, overflow=overflow, generator=generator), limit=largest_value(name))
    kept = cast(values * scale, name, overflow=overflow, generator=generator)
    return Kept(values=kept.div_(scale), limit=largest_value(name) / scale)


def current_scale(values: Tensor, name: str) -> float:
    """The scale that brings the largest magnitude of ``values`` onto the largest number of the format."""
    amax = largest_magnitude(values)
    scale = largest_value(name) / amax if amax > 0 else math.inf
    return scale if 0 < scale < _LARGEST_SCALE else 1.0


def largest_magnitude(values: Tensor) -> float:
    """amax: NaN where any value is."""
    least, most = values.aminmax()
    return max(-float(least), float(most))


def keep_in_blocks(
    values: Tensor, name: str, recipe: LabRecipe, *, weight: bool, generator: torch.Generator | None = None
) -> Kept:
    """``values`` (rows, columns) under scales of blocks; those of one row run along the columns, the summed axis."""
    height, width = values.shape
    blocks = _blocks(values.contiguous(), *_BLOCKS[recipe.scaling][weight])
    amax = blocks.abs().amax(dim=(1, 3), keepdim=True)
    match recipe.scaling:
        case "mx":
            scale = mx_scale(amax, name, recipe.power_rule)
        case "nvfp4":
            scale = _two_level_scale(amax, name)
        case _:
            # Tiny gradients must not make a scale of zero, which would turn their blocks into NaN.
            scale = torch.where(amax > 0, (amax / largest_value(name)).clamp_min(2.0**-126), torch.ones_like(amax))
    kept = cast(blocks / scale, name, overflow=recipe.overflow, generator=generator) * scale
    # A quotient is rounded: an amax that fills its range exactly must not count as beyond it.
    limit = (scale * (largest_value(name) * (1 + 2.0**-22))).expand_as(blocks)
    return Kept(values=_join(kept, height, width), limit=_join(limit, height, width))


def mx_scale(amax: Tensor, name: str, rule: str) -> Tensor:
    """Power-of-two scales (to divide by) of MX groups with largest magnitude ``amax``, same shape.

    "floor": 2 ** (floor(log2 amax) - floor(log2 maximum)), OCP MX v1.0 section 6.3, under which the top of a binade
    saturates; "rceil": the least power of two not below amax / maximum. The range of the scales ends at 2 ** -126, one
    step above E8M0's.
    """
    largest = largest_value(name)
    if rule == "floor":
        power = (amax.view(torch.int32) & 0x7F800000).view(torch.float32)
        return (power * 2.0 ** -math.floor(math.log2(largest))).clamp_min(2.0**-126)
    quotient = amax / largest
    bits = quotient.view(torch.int32)
    up = (bits & 0x7FFFFF) != 0
    return ((bits & 0x7F800000) + (up.to(torch.int32) << 23)).view(torch.float32).clamp(2.0**-126, 2.0**127)


def hadamard(values: Tensor, signs: Tensor) -> Tensor:
    """``values`` (rows, columns) with every 16 neighbouring rows mixed by a random Hadamard transform.

    The same transform of both operands along their summed axis leaves the product as it is and spreads outliers over 16
    values. ``signs``: (16,) of ±1.
    """
    mix = _hadamard_matrix(values.device) * signs
    rows, columns = values.shape
    return torch.matmul(mix, values.reshape(rows // 16, 16, columns)).reshape(rows, columns)


def _hadamard_matrix(device: torch.device) -> Tensor:
    matrix = torch.ones(1, 1)
    for _ in range(4):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return (matrix / 4).to(device)


def _blocks(values: Tensor, rows: int, columns: int) -> Tensor:
    """(row blocks, rows, column blocks, columns); the last blocks are filled up with zeros, which move no amax."""
    height, width = values.shape
    rows, columns = min(rows, height), min(columns, width)
    missing_rows, missing_columns = -height % rows, -width % columns
    if missing_rows or missing_columns:
        values = functional.pad(values, (0, missing_columns, 0, missing_rows))
    return values.view((height + missing_rows) // rows, rows, (width + missing_columns) // columns, columns)


def _join(blocks: Tensor, height: int, width: int) -> Tensor:
    whole = blocks.reshape(blocks.shape[0] * blocks.shape[1], blocks.shape[2] * blocks.shape[3])
    return whole[:height, :width]


def _two_level_scale(amax: Tensor, name: str) -> Tensor:
    top = amax.max()
    whole = top / (largest_value(name) * largest_value("fp8_e4m3"))
    whole = torch.where(whole > 0, whole, torch.ones_like(whole))
    exact = amax / largest_value(name) / whole
    return cast(exact.clamp_min(_SMALLEST_NORMAL_E4M3), "fp8_e4m3") * whole
