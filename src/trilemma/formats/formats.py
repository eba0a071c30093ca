"""Number formats: what one element holds, and what a tensor costs with its scales and zero points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from trilemma.errors import InputError
from trilemma.quantities import Numbers, ceil_div

if TYPE_CHECKING:
    from trilemma.formats.computing import ComputingCard

#: What shares one scale: the tensor, an output row, ``group`` neighbours of a row, a block of rows × columns, or ``group``
#: neighbours of the flattened tensor.
Granularity = Literal["none", "tensor", "channel", "group", "block", "flat"]
#: How the top codes of a float are spent: see ``data/formats.toml``.
Special = Literal["", "ieee", "fn", "fnuz", "finite", "scale"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How a tensor is stored.

    ``bits`` is one element without scales. ``granularity`` says over what a scale is shared: the whole tensor, one output
    row (channel), ``group`` neighbouring elements of a row, a ``block`` of rows × columns, or ``group`` neighbours of the
    flattened tensor. ``scale_bits`` and ``zero_point_bits`` are stored once per such unit, ``superblock_bits`` once per
    ``superblock`` units (NF4's double quantisation), ``tensor_bits`` once per matrix (NVFP4's second level). A packed
    format (GGUF) stores whole blocks of ``group`` elements in ``block_bytes``, everything included.

    ``hardware`` is the kind of matrix units that multiply it as it is ("" where it is expanded to 16 bits or FP32 first).
    ``element`` names the format whose coding one element has, ``scale_format`` that of a scale. Range facts are those of
    one element before scaling; they are None where they mean nothing (codebooks, packed blocks).
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
    superblock: int = 0
    superblock_bits: float = 0
    block_bytes: int = 0
    element: str = ""
    scale_format: str = ""
    exponent_bits: int | None = None
    mantissa_bits: int | None = None
    bias: int | None = None
    special: Special = ""
    signed: bool = True
    hardware: str = ""
    aliases: tuple[str, ...] = ()
    used: str = ""
    pitfalls: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if self.bits <= 0:
            raise InputError(f"format {self.name!r} has {self.bits} bits; an element needs more than none")
        if self.granularity in {"group", "flat"} and self.group < 1:
            raise InputError(f"format {self.name!r} has groups of {self.group}; use 1 or more, such as 128")
        if self.granularity == "block" and min(self.block) < 1:
            raise InputError(
                f"format {self.name!r} has blocks of {self.block}; use rows and columns such as (128, 128)"
            )

    @overload
    def storage_bytes(self, shape: tuple[int, ...]) -> int: ...
    @overload
    def storage_bytes(self, shape: tuple[Numbers, ...]) -> Any: ...
    def storage_bytes(self, shape: tuple[Numbers, ...]) -> Any:
        """Bytes of a tensor of ``shape`` with its scales, zero points and second levels, rounded up to a byte.

        Leading dimensions stack matrices; the last is the row that groups run along. A dimension may be an array (one
        entry per plan), then so is the answer. Partial groups and blocks carry a whole scale; packed blocks are whole.
        """
        columns: Any = shape[-1] if shape else 1
        rows: Any = shape[-2] if len(shape) > 1 else 1
        stacked: Any = math.prod(shape[:-2]) * (rows * columns > 0)
        elements = stacked * rows * columns
        if self.block_bytes:
            return stacked * rows * ceil_div(columns, self.group) * self.block_bytes
        match self.granularity:
            case "none":
                units = 0
            case "tensor":
                units = stacked
            case "channel":
                units = stacked * rows
            case "group":
                units = stacked * rows * ceil_div(columns, self.group)
            case "block":
                units = stacked * ceil_div(rows, self.block[0]) * ceil_div(columns, self.block[1])
            case "flat":
                units = stacked * ceil_div(rows * columns, self.group)
        bits = elements * self.bits + units * (self.scale_bits + self.zero_point_bits) + stacked * self.tensor_bits
        if self.superblock:
            bits = bits + ceil_div(units, self.superblock) * self.superblock_bits
        n_bytes = ceil_div(bits, 8)
        return int(n_bytes) if isinstance(n_bytes, float) else n_bytes

    def computes_in(self, card: ComputingCard, *, activation_bits: int | None = None) -> str:
        """The format of the matrix units of ``card`` that multiply weights stored so: its own, a stand-in, or "bf16".

        Weight-only formats (integer groups, NF4, GGUF, and any whose ``activation_bits`` are 16) are expanded inside the
        product; FP8 needs FP8 units, else it is expanded too (Ampere), and so are MXFP4 and NVFP4 on cards before Blackwell
        and CDNA4. MXFP4 weights meet MXFP8 activations, whose rate is FP8's, unless ``activation_bits`` say 4.
        The rules are data: ``[units]`` of ``data/formats.toml``.
        """
        from trilemma.formats.computing import computes_in

        return computes_in(self, card, activation_bits)

    @property
    def effective_bits(self) -> float:
        """Bits per element of a large tensor with everything stored beside the elements.

        Scales per tensor and per channel vanish in this limit; ``8 * storage_bytes(shape) / elements`` has them.
        """
        if self.block_bytes:
            return 8 * self.block_bytes / self.group
        per_unit = self.scale_bits + self.zero_point_bits
        if self.superblock:
            per_unit += self.superblock_bits / self.superblock
        match self.granularity:
            case "group" | "flat":
                return self.bits + per_unit / self.group
            case "block":
                return self.bits + per_unit / math.prod(self.block)
        return self.bits

    @property
    def max_value(self) -> float | None:
        """The largest finite element."""
        if self.kind == "int":
            return float(2 ** (int(self.bits) - self.signed) - 1)
        if self.exponent_bits is None or self.mantissa_bits is None or self.bias is None:
            return None
        top, steps = 2**self.exponent_bits - 1, 2**self.mantissa_bits
        if self.special == "ieee":
            top, last = top - 1, steps - 1
        elif self.special == "scale":
            return math.ldexp(1.0, top - 1 - self.bias)
        else:
            last = steps - 2 if self.special == "fn" else steps - 1
        return math.ldexp(1 + last / steps, top - self.bias)

    @property
    def min_value(self) -> float | None:
        """The lowest finite element."""
        if self.kind == "int":
            return -float(2 ** (int(self.bits) - 1)) if self.signed else 0.0
        if self.special == "scale":
            return self.smallest_normal
        return None if self.max_value is None else -self.max_value

    @property
    def smallest_normal(self) -> float | None:
        """The least positive element held at full precision."""
        if self.bias is None:
            return None
        return math.ldexp(1.0, (0 if self.special == "scale" else 1) - self.bias)

    @property
    def smallest_subnormal(self) -> float | None:
        """The least positive element; None where there are no subnormals."""
        if self.bias is None or not self.mantissa_bits:
            return None
        return math.ldexp(1.0, 1 - self.bias - self.mantissa_bits)

    @property
    def epsilon(self) -> float | None:
        """The step above 1: relative for floats, the step itself (1) for integers."""
        if self.kind == "int":
            return 1.0
        return None if self.mantissa_bits is None else math.ldexp(1.0, -self.mantissa_bits)

    @property
    def has_infinity(self) -> bool:
        """Whether an infinity has a code."""
        return self.special == "ieee"

    @property
    def has_nan(self) -> bool:
        """Whether NaN has a code."""
        return self.special in {"ieee", "fn", "fnuz", "scale"}
