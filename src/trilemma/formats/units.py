"""Which elements share a scale: a tensor laid out as one row per scale, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.formats.elements import CHUNK, Floats
from trilemma.formats.formats import Format


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedUnits:
    """The rows that `split` makes of a tensor: ``matrices`` stacked matrices of ``rows`` × ``columns``, ``scales_shape``."""

    shape: tuple[int, ...]
    matrices: int
    rows: int
    columns: int
    scales_shape: tuple[int, ...]
    elements: int

    @property
    def count(self) -> int:
        """How many scales there are."""
        return math.prod(self.scales_shape)

    @property
    def per_matrix(self) -> int:
        """Scales of one stacked matrix."""
        return self.count // self.matrices if self.matrices else 0


def layout(shape: tuple[int, ...], fmt: Format) -> QuantizedUnits:
    """How the scales of ``fmt`` lie over a tensor of ``shape``; partial groups and blocks count as whole ones.

    ``scales_shape`` is (…, 1, 1) per tensor, (…, rows, 1) per channel, (…, rows, groups), (…, block rows, block columns)
    or (…, 1, groups of the flattened matrix), with the leading dimensions of ``shape``.
    """
    lead = shape[:-2]
    rows = shape[-2] if len(shape) > 1 else 1
    columns = shape[-1] if shape else 1
    matrices = math.prod(lead)
    match fmt.granularity:
        case "none" | "tensor":
            scales, elements = (1, 1), rows * columns
        case "channel":
            scales, elements = (rows, 1), columns
        case "group":
            scales, elements = (rows, -(-columns // fmt.group)), fmt.group
        case "flat":
            scales, elements = (1, -(-rows * columns // fmt.group)), fmt.group
        case "block":
            scales = (-(-rows // fmt.block[0]), -(-columns // fmt.block[1]))
            elements = math.prod(fmt.block)
    return QuantizedUnits(
        shape=shape,
        matrices=matrices,
        rows=rows,
        columns=columns,
        scales_shape=(*lead, *scales),
        elements=elements,
    )


def split(values: NDArray[Any], fmt: Format, units: QuantizedUnits) -> NDArray[Any]:
    """``values`` as (scales, elements per scale); short groups and blocks are filled up with zeros."""
    stacked = np.ascontiguousarray(values).reshape(units.matrices, units.rows, units.columns)
    match fmt.granularity:
        case "group":
            short = -units.columns % fmt.group
            if short:
                stacked = np.pad(stacked, ((0, 0), (0, 0), (0, short)))
        case "flat":
            stacked = stacked.reshape(units.matrices, 1, units.rows * units.columns)
            short = -stacked.shape[-1] % fmt.group
            if short:
                stacked = np.pad(stacked, ((0, 0), (0, 0), (0, short)))
        case "block":
            high, wide = fmt.block
            stacked = np.pad(stacked, ((0, 0), (0, -units.rows % high), (0, -units.columns % wide)))
            down, across = stacked.shape[1] // high, stacked.shape[2] // wide
            stacked = stacked.reshape(units.matrices, down, high, across, wide).transpose(0, 1, 3, 2, 4)
    return stacked.reshape(units.count, units.elements)


def join(split_values: NDArray[Any], fmt: Format, units: QuantizedUnits) -> NDArray[Any]:
    """The tensor that `split` laid out, without its filling."""
    match fmt.granularity:
        case "group":
            filled = units.scales_shape[-1] * fmt.group
            stacked = split_values.reshape(units.matrices, units.rows, filled)[:, :, : units.columns]
        case "flat":
            filled = units.scales_shape[-1] * fmt.group
            stacked = split_values.reshape(units.matrices, filled)[:, : units.rows * units.columns]
        case "block":
            high, wide = fmt.block
            down, across = units.scales_shape[-2:]
            stacked = split_values.reshape(units.matrices, down, across, high, wide).transpose(0, 1, 3, 2, 4)
            stacked = stacked.reshape(units.matrices, down * high, across * wide)[:, : units.rows, : units.columns]
        case _:
            stacked = split_values
    return np.ascontiguousarray(stacked).reshape(units.shape)


def slabs(units: QuantizedUnits) -> Iterator[tuple[slice, slice]]:
    """Row and column slices that cover the split tensor in pieces that stay in cache."""
    height = max(1, CHUNK // max(1, units.elements))
    for top in range(0, units.count, height):
        rows = slice(top, min(top + height, units.count))
        for left in range(0, units.elements, CHUNK):
            yield rows, slice(left, min(left + CHUNK, units.elements))


def largest(rows: Floats) -> Floats:
    """Largest magnitude of every row, shape (rows,); NaN where a row holds one."""
    return _reduce(rows, np.abs, np.max)


def extremes(rows: Floats) -> tuple[Floats, Floats]:
    """Lowest and highest value of every row with zero among them, so that zero keeps an exact code."""
    low = _reduce(rows, np.asarray, np.min)
    high = _reduce(rows, np.asarray, np.max)
    return np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0))


def refuse_non_finite(per_unit: Floats, fmt: Format) -> None:
    """Raise `InputError` where a unit's extreme is NaN or infinite: its one scale would spoil all its elements."""
    bad = ~np.isfinite(per_unit)
    if bad.any():
        raise InputError(
            f"{int(bad.sum())} of {per_unit.size} scales of {fmt.name} would be NaN or infinite (first: scale"
            f" {int(np.argmax(bad))}); the tensor holds NaN or infinity, mend it before quantising"
        )


def _reduce(rows: Floats, prepare: Any, reduce: Any) -> Floats:
    out = np.full(rows.shape[0], 0, np.float32)
    if rows.size == 0:
        return out
    # Reducing short rows along the last axis costs a call per row; a transposed copy in cache reduces whole vectors.
    short = rows.shape[1] <= 64
    height = max(1, CHUNK // rows.shape[1])
    for top in range(0, rows.shape[0], height):
        some = prepare(rows[top : top + height])
        out[top : top + height] = reduce(some.T.copy(), axis=0) if short else reduce(some, axis=1)
    return out
