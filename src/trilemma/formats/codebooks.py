"""NormalFloat 4: sixteen quantiles of a normal distribution, and the 8-bit dynamic map that compresses its scales."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.formats.elements import CHUNK, Floats

#: NF4 values, Dettmers et al. 2023 (arXiv:2305.14314), appendix E.
NF4: Floats = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
_MIDDLES = (NF4[:-1] + NF4[1:]) / np.float32(2)
_BOUNDS = np.append(_MIDDLES, np.float32(np.inf))


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondLevel:
    """What compressed scales need to be read: ``offset`` taken off them all, ``largest`` per ``superblock`` scales."""

    offset: np.float32
    largest: Floats
    superblock: int


def nearest_nf4(scaled: NDArray[Any]) -> NDArray[np.uint8]:
    """NF4 codes of values in [-1, 1], same shape; halfway goes to the lower code, as in bitsandbytes."""
    flat = np.ascontiguousarray(scaled, np.float32).reshape(-1)
    out = np.empty(flat.size, np.uint8)
    table = _lowest_code()
    for start in range(0, flat.size, CHUNK):
        some = flat[start : start + CHUNK]
        # Values that share their upper 16 bits lie closer than any two boundaries: one comparison settles the code.
        low = np.take(table, some.view(np.uint32) >> 16, mode="wrap")
        low += some > np.take(_BOUNDS, low, mode="wrap")
        out[start : start + CHUNK] = low
    return out.reshape(scaled.shape)


def compress_scales(scales: Floats, superblock: int, *, offset: np.float32 | None = None) -> tuple[Any, SecondLevel]:
    """8-bit codes of NF4 scales (n,) and their second level: the mean is taken off, then every ``superblock`` scales are
    divided by their largest magnitude and rounded to the dynamic map (QLoRA, section 3).

    ``offset`` replaces the mean, whose last bit depends on the order of summation.
    """
    mean = np.float32(scales.mean(dtype=np.float64)) if scales.size else np.float32(0)
    shift = mean if offset is None else offset
    centred = (scales - shift).astype(np.float32)
    filled = np.pad(centred, (0, -centred.size % superblock)).reshape(-1, superblock)
    largest = np.abs(filled).max(axis=1, initial=0).astype(np.float32)
    inverse = np.float32(1) / np.maximum(largest, np.float32(1e-38))
    codes = nearest_dynamic(filled * inverse[:, None]).reshape(-1)[: centred.size]
    return codes, SecondLevel(offset=shift, largest=largest, superblock=superblock)


def expand_scales(codes: NDArray[np.uint8], level: SecondLevel) -> Floats:
    """The scales (n,) that `compress_scales` wrote."""
    per_scale = np.repeat(level.largest, level.superblock)[: codes.size]
    return (dynamic_map()[codes] * per_scale + level.offset).astype(np.float32)


@cache
def dynamic_map() -> Floats:
    """The 256 values of the signed dynamic 8-bit type (Dettmers 2016, arXiv:1511.04561): the leading zeros choose the power
    of ten, the bits after them a linear fraction."""
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = _line(2**exponent + 1)
        means = ((edges[:-1] + edges[1:]) / np.float32(2)) * np.float32(10.0 ** (exponent - 6))
        values += [*means.tolist(), *(-means).tolist()]
    table = np.sort(np.array(values, np.float32))
    table.setflags(write=False)
    return table


def _line(points: int) -> Floats:
    # As torch.linspace: an FP32 step, taken from the nearer end with one rounding; its last bits decide ties.
    low, high = np.float32(0.1), np.float32(1)
    step = float((high - low) / np.float32(points - 1))
    index = np.arange(points)
    line = np.where(index < points // 2, float(low) + step * index, float(high) - step * (points - 1 - index))
    return line.astype(np.float32)


def nearest_dynamic(scaled: NDArray[Any]) -> NDArray[np.uint8]:
    """Codes of the dynamic map for values in [-1, 1], same shape; halfway goes to the lower code.

    This is the rule of bitsandbytes' device kernels; its CPU kernel looks up a coarser table and may differ by one code
    within 2e-5 of a boundary.
    """
    table = dynamic_map()
    middles = (table[:-1] + table[1:]) / np.float32(2)
    return np.asarray(np.searchsorted(middles, scaled, side="left"), np.uint8)


@cache
def _lowest_code() -> NDArray[np.uint8]:
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16
    with np.errstate(invalid="ignore"):
        values = patterns.view(np.float32)
        # Cutting bits moves towards zero: below zero the lowest value of a bucket is next to the following pattern.
        following = (patterns | np.uint32(0xFFFF)).view(np.float32)
        lowest = np.where(np.signbit(values), following, values)
    return np.asarray(np.searchsorted(_MIDDLES, np.nan_to_num(lowest), side="left"), np.uint8)
