"""Quantise and dequantise whole tensors in every format of the catalogue, with every choice said aloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.formats import codebooks, gguf_blocks, scales, units
from trilemma.formats.catalogue import get
from trilemma.formats.elements import Floats, Overflow, Rounding, check_choices, decode, encode, look_up, lookup_table
from trilemma.formats.encoded import Encoded, scale_values
from trilemma.formats.formats import Format
from trilemma.formats.scales import IntRange, PowerRule


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choices:
    overflow: Overflow
    rounding: Rounding
    generator: np.random.Generator | None
    power_rule: PowerRule
    int_range: IntRange

    @property
    def stochastic(self) -> np.random.Generator | None:
        """The generator when rounding is stochastic."""
        return self.generator if self.rounding == "stochastic" else None


def quantise(
    values: NDArray[Any],
    fmt: Format | str,
    *,
    overflow: Overflow = "saturate",
    rounding: Rounding = "nearest_even",
    generator: np.random.Generator | None = None,
    power_rule: PowerRule = "floor",
    int_range: IntRange = "full",
    like: Encoded | None = None,
) -> Encoded:
    """``values`` (any shape, read as FP32; FP64 stays for ``fp64``) in ``fmt``.

    ``overflow`` says what floats beyond the range become, those beyond static or FLOOR scales included (MX and NVFP4
    kernels saturate). ``power_rule`` makes E8M0 scales, ``int_range`` symmetric integer scales; integers saturate. ``like``
    reuses the scales of an earlier result (static scales). Units of zeros stay zeros.

    Raises `InputError` for NaN or infinity where one scale would spread it over its neighbours (MX formats hold it: the
    group becomes NaN, OCP MX v1.0 section 5.3), for rows that do not fill GGUF blocks, for formats without an encoder, and
    for choices that mean nothing in ``fmt``.
    """
    fmt = get(fmt) if isinstance(fmt, str) else fmt
    choices = _Choices(
        overflow=overflow, rounding=rounding, generator=generator, power_rule=power_rule, int_range=int_range
    )
    _check(fmt, choices)
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputError(f"values of type {array.dtype} cannot be quantised; give an array of real numbers")
    if fmt.kind == "packed":
        return Encoded(format=fmt, shape=array.shape, codes=gguf_blocks.quantise(_fp32(array), fmt))
    if fmt.granularity == "none":
        return Encoded(format=fmt, shape=array.shape, codes=_unscaled(array, fmt, choices))
    tensor = _fp32(array)
    lay = units.layout(tensor.shape, fmt)
    if like is not None and (like.format != fmt or like.scales is None or like.scales.shape != lay.scales_shape):
        raise InputError(
            f"the scales to reuse are of {like.format.name} {like.shape}, not of {fmt.name} {tensor.shape}"
        )
    rows = units.split(tensor, fmt, lay)
    if like is not None and not (fmt.kind == "float" and get(fmt.element).has_nan):
        units.refuse_non_finite(units.largest(rows), fmt)
    if fmt.kind == "codebook":
        return _codebook(rows, fmt, lay, like)
    if fmt.kind == "int":
        return _integers(rows, fmt, lay, choices, like)
    return _floats(rows, fmt, lay, choices, like)


def dequantise(encoded: Encoded) -> NDArray[Any]:
    """FP32 values (FP64 for ``fp64``) of an encoded tensor, in its shape."""
    fmt = encoded.format
    if fmt.kind == "packed":
        return gguf_blocks.dequantise(encoded.codes, fmt, encoded.shape)
    if encoded.scales is None:
        if fmt.kind == "int":
            return encoded.codes.astype(np.float32)
        return encoded.codes if fmt.bits > 16 else decode(encoded.codes, fmt)
    lay = units.layout(encoded.shape, fmt)
    codes = units.split(encoded.codes, fmt, lay)
    per_unit = scale_values(encoded, lay)
    zeros = None if encoded.zero_points is None else encoded.zero_points.reshape(-1)
    table = codebooks.NF4 if fmt.kind == "codebook" else None
    out = np.empty(codes.shape, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for rows, columns in units.slabs(lay):
            some = codes[rows, columns]
            if fmt.kind != "int":
                decoded = decode(some, get(fmt.element)) if table is None else table[some]
            elif zeros is None:
                decoded = some.astype(np.float32)
            else:
                decoded = (some.astype(np.int32) - zeros[rows, None]).astype(np.float32)
            np.multiply(decoded, per_unit[rows, None], out=out[rows, columns])
    return units.join(out, fmt, lay)


def round_trip(values: NDArray[Any], fmt: Format | str, **choices: Any) -> NDArray[Any]:
    """What is left of ``values`` after `quantise` and `dequantise`; ``choices`` are those of `quantise`."""
    return dequantise(quantise(values, fmt, **choices))


def _fp32(array: NDArray[Any]) -> Floats:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape)


def _check(fmt: Format, choices: _Choices) -> None:
    if choices.rounding == "stochastic" and (fmt.kind in {"packed", "codebook"} or fmt.bits > 16 or fmt.name == "tf32"):
        raise InputError(f"{fmt.name} is rounded to nearest only; use rounding nearest_even")
    if fmt.kind == "float" and fmt.bits <= 16:
        check_choices(get(fmt.element or fmt.name), choices.overflow, choices.rounding, choices.generator)
    elif choices.overflow != "saturate":
        raise InputError(f"values beyond the range of {fmt.name} saturate; use overflow saturate")
    elif choices.rounding == "stochastic" and choices.generator is None:
        raise InputError("stochastic rounding needs a generator; give numpy.random.default_rng(seed)")


def _unscaled(array: NDArray[Any], fmt: Format, choices: _Choices) -> NDArray[Any]:
    if fmt.kind == "int":
        return _plain_integers(array, fmt, choices)
    if fmt.name == "fp64":
        return array.astype(np.float64)
    if fmt.name == "fp32":
        return _fp32(array).copy()
    if fmt.name == "tf32":
        return _to_tf32(_fp32(array))
    return encode(array, fmt, overflow=choices.overflow, rounding=choices.rounding, generator=choices.generator)


def _to_tf32(values: Floats) -> Floats:
    bits = values.view(np.uint32)
    kept = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), kept.view(np.float32), values)


def _plain_integers(array: NDArray[Any], fmt: Format, choices: _Choices) -> NDArray[Any]:
    low, high = scales.integer_bounds(fmt, choices.int_range)
    exact = array.astype(np.float64)
    if not np.isfinite(exact).all():
        raise InputError(f"the tensor holds NaN or infinity, which {fmt.name} cannot hold; mend it before quantising")
    stochastic = choices.stochastic
    rounded = np.rint(exact) if stochastic is None else np.floor(exact + stochastic.random(exact.shape))
    # 2 ** 63 - 1 is no FP64: the cast of the next FP64 would wrap around.
    top = np.nextafter(2.0**63, 0) if high >= 2**63 - 1 else high
    return np.clip(rounded, low, top).astype(_integer_type(fmt))


def _integer_type(fmt: Format) -> np.dtype[Any]:
    width = max(8, int(fmt.bits))
    return np.dtype(f"{'int' if fmt.signed else 'uint'}{width}")


def _floats(rows: Floats, fmt: Format, lay: units.QuantizedUnits, choices: _Choices, like: Encoded | None) -> Encoded:
    element = get(fmt.element)
    if like is None:
        stored, tensor_scale = _float_scales(rows, fmt, element, lay, choices.power_rule)
    else:
        stored, tensor_scale = np.asarray(like.scales), like.tensor_scale
    if fmt.scale_format == "e8m0":
        factor, divide = scales.reciprocal_power(stored.reshape(-1)), False
    elif fmt.scale_format == "fp8_e4m3":
        # NVFP4 kernels multiply by the rounded reciprocal of both levels.
        whole = np.float32(1) if tensor_scale is None else np.repeat(tensor_scale.reshape(-1), lay.per_matrix)
        factor, divide = (np.float32(1) / whole) / scales.value_of(stored.reshape(-1), fmt), False
    else:
        factor, divide = scales.value_of(stored.reshape(-1), fmt), True
    codes = np.empty(rows.shape, np.uint8)
    table = _scaled_table(element, choices.overflow)
    for down, across in units.slabs(lay):
        some = rows[down, across]
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = some / factor[down, None] if divide else some * factor[down, None]
        if choices.stochastic is not None:
            known = scaled if element.has_nan else np.nan_to_num(scaled)
            codes[down, across] = encode(
                known, element, overflow=choices.overflow, rounding="stochastic", generator=choices.generator
            )
        else:
            codes[down, across] = look_up(scaled.reshape(-1), table).reshape(scaled.shape)
    return Encoded(
        format=fmt, shape=lay.shape, codes=units.join(codes, fmt, lay), scales=stored, tensor_scale=tensor_scale
    )


def _scaled_table(element: Format, overflow: Overflow) -> NDArray[np.uint8]:
    # A group that holds NaN is marked by its scale: elements without NaN of their own need no code for it.
    table = lookup_table(element, overflow)
    return table if element.has_nan else np.where(table == 0xFF, np.uint8(0), table)


def _float_scales(
    rows: Floats, fmt: Format, element: Format, lay: units.QuantizedUnits, power_rule: PowerRule
) -> tuple[NDArray[Any], Floats | None]:
    largest = units.largest(rows)
    if fmt.scale_format == "e8m0":
        return scales.power_of_two(largest, element, power_rule).reshape(lay.scales_shape), None
    units.refuse_non_finite(largest, fmt)
    exact: Floats = np.divide(largest, np.float32(element.max_value or 0), dtype=np.float32)
    tensor_scale = None
    if fmt.tensor_bits:
        tensor_scale = _tensor_scale(largest, fmt, element, lay)
        exact = np.divide(exact, np.repeat(tensor_scale.reshape(-1), lay.per_matrix), dtype=np.float32)
    return scales.store(exact, fmt).reshape(lay.scales_shape), tensor_scale


def _tensor_scale(largest: Floats, fmt: Format, element: Format, lay: units.QuantizedUnits) -> Floats:
    # NVFP4's second level: the largest group scale becomes the largest E4M3 number.
    per_matrix = largest.reshape(lay.matrices, lay.per_matrix)
    top = per_matrix.max(axis=1, initial=0)
    limits = np.float32((element.max_value or 0) * (get(fmt.scale_format).max_value or 0))
    scale = np.where(top > 0, np.maximum(top / limits, np.float32(2.0**-120)), np.float32(1)).astype(np.float32)
    return scale.reshape((*lay.shape[:-2], 1, 1))


def _integers(rows: Floats, fmt: Format, lay: units.QuantizedUnits, choices: _Choices, like: Encoded | None) -> Encoded:
    low, high = scales.integer_bounds(fmt, choices.int_range)
    zeros: NDArray[Any] | None = None
    stored: NDArray[Any]
    if like is not None:
        stored, zeros = np.asarray(like.scales), like.zero_points
    elif fmt.signed:
        largest = units.largest(rows)
        units.refuse_non_finite(largest, fmt)
        stored = scales.store(scales.integer_scale(largest, fmt, choices.int_range), fmt)
    else:
        least, most = units.extremes(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            units.refuse_non_finite(most - least, fmt)
        exact, zero = scales.affine_scale(least, most, fmt)
        stored = scales.store(exact, fmt)
        zeros = np.clip(np.rint(zero), low, high).astype(np.int32)
    factor = scales.value_of(stored.reshape(-1), fmt)
    offset = None if zeros is None else zeros.reshape(-1)
    codes = np.empty(rows.shape, np.int8 if fmt.signed else np.uint8)
    for down, across in units.slabs(lay):
        scaled = rows[down, across] / factor[down, None]
        if (stochastic := choices.stochastic) is not None:
            scaled = np.floor(scaled + stochastic.random(scaled.shape, dtype=np.float32), out=scaled)
        else:
            np.rint(scaled, out=scaled)
        if offset is not None:
            scaled += offset[down, None].astype(np.float32)
        np.clip(scaled, low, high, out=scaled)
        codes[down, across] = scaled
    return Encoded(
        format=fmt,
        shape=lay.shape,
        codes=units.join(codes, fmt, lay),
        scales=stored.reshape(lay.scales_shape),
        zero_points=None if zeros is None else zeros.reshape(lay.scales_shape),
    )


def _codebook(rows: Floats, fmt: Format, lay: units.QuantizedUnits, like: Encoded | None) -> Encoded:
    second: codebooks.SecondLevel | None = None
    stored: NDArray[Any]
    if like is not None:
        stored, second = np.asarray(like.scales), like.superblock
        largest = scale_values(like, lay)
    else:
        stored = largest = units.largest(rows)
        units.refuse_non_finite(largest, fmt)
        if fmt.superblock:
            stored, second = codebooks.compress_scales(largest, fmt.superblock)
    codes = np.empty(rows.shape, np.uint8)
    # bitsandbytes rounds against the exact scale, also where a compressed one is stored; the one read back may be negative.
    tiny = np.abs(largest) < np.float32(1e-38)
    inverse = np.where(tiny, np.float32(0), np.float32(1) / np.where(tiny, np.float32(1), largest))
    for down, across in units.slabs(lay):
        codes[down, across] = codebooks.nearest_nf4(rows[down, across] * inverse[down, None])
    return Encoded(
        format=fmt,
        shape=lay.shape,
        codes=units.join(codes, fmt, lay),
        scales=stored.reshape(lay.scales_shape),
        superblock=second,
    )
