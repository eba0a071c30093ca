"""A tensor in a number format: its codes, and all that is stored beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.formats import codebooks, scales, units
from trilemma.formats.elements import Floats
from trilemma.formats.formats import Format


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A tensor in a number format.

    ``codes`` has the tensor's ``shape``: uint8 (uint16 for FP16 and BF16) for floats and codebooks, int8 to int64 for
    integers, values themselves for FP32, TF32 and FP64. ``scales`` are as stored, in the shape that `units.layout` states;
    ``zero_points`` are integers of the same shape. ``tensor_scale`` is (…, 1, 1) for NVFP4. ``superblock`` holds NF4's
    second level. A packed format (GGUF) has its blocks as uint8 rows in ``codes`` and nothing else.
    """

    format: Format
    shape: tuple[int, ...]
    codes: NDArray[Any]
    scales: NDArray[Any] | None = None
    zero_points: NDArray[Any] | None = None
    tensor_scale: Floats | None = None
    superblock: codebooks.SecondLevel | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes this tensor takes, the codes packed at the format's width."""
        return self.format.storage_bytes(self.shape)


def scale_values(encoded: Encoded, lay: units.QuantizedUnits) -> Floats:
    """FP32 value of every scale of ``encoded``, all levels multiplied out, flat in the order of `units.split`."""
    fmt = encoded.format
    if encoded.scales is None:
        raise InputError(f"this tensor in {fmt.name} has no scales")
    flat = encoded.scales.reshape(-1)
    if encoded.superblock is not None:
        return codebooks.expand_scales(flat, encoded.superblock)
    values = scales.value_of(flat, fmt)
    if encoded.tensor_scale is not None:
        values = values * np.repeat(encoded.tensor_scale.reshape(-1), lay.per_matrix)
    return values
