"""Number formats: what one element holds, and what a tensor costs with its scales and zero points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Granularity = Literal["none", "tensor", "channel", "group", "block"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How a tensor is stored.

    ``bits`` is one element without scales. ``granularity`` says over what a scale is shared: the whole tensor, one output
    row (channel), ``group`` neighbouring elements of a row, or a ``block`` of rows × columns. ``scale_bits`` and
    ``zero_point_bits`` are stored once per such unit, ``tensor_bits`` once per tensor (NVFP4's second level).
    """

    name: str
    bits: float
    kind: Literal["float", "int", "codebook", "packed"] = "float"
    granularity: Granularity = "none"
    group: int = 0
    block: tuple[int, int] = (0, 0)
    scale_bits: float = 0
    zero_point_bits: float = 0
    tensor_bits: float = 0

    def storage_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of ``shape`` (leading dims stack matrices; the last is the row that groups run along)."""
        elements = math.prod(shape)
        rows, columns = (math.prod(shape[-2:-1]), shape[-1]) if shape else (1, 1)
        stacked = elements // (rows * columns) if rows * columns else 0
        match self.granularity:
            case "none":
                units = 0
            case "tensor":
                units = stacked
            case "channel":
                units = stacked * rows
            case "group":
                units = stacked * rows * -(-columns // self.group)
            case "block":
                units = stacked * -(-rows // self.block[0]) * -(-columns // self.block[1])
        bits = elements * self.bits + units * (self.scale_bits + self.zero_point_bits) + self.tensor_bits
        return math.ceil(bits / 8)
