"""The coding of one element: FP32 values to codes of a narrow float and back, with overflow and rounding said aloud."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.formats.catalogue import get
from trilemma.formats.formats import Format

Floats: TypeAlias = NDArray[np.float32]
Codes: TypeAlias = NDArray[Any]
#: What becomes of a value that rounds beyond the largest one, infinities included.
Overflow = Literal["saturate", "nan", "inf"]
Rounding = Literal["nearest_even", "stochastic"]

#: Elements worked on at once: small enough that every temporary stays in the second-level cache.
CHUNK = 1 << 15
#: Code written for NaN where a format of fewer than 8 bits has none; `encode` refuses it afterwards.
_NO_NAN = 0xFF


def encode(
    values: NDArray[Any],
    fmt: Format,
    *,
    overflow: Overflow = "saturate",
    rounding: Rounding = "nearest_even",
    generator: np.random.Generator | None = None,
) -> Codes:
    """Codes of ``values`` (any shape, read as FP32) in a float format of at most 16 bits, without scales.

    Nearest-even is the rounding of IEEE 754 and OFP8; stochastic rounding goes up with the probability of the distance
    passed and needs ``generator``. ``overflow`` says what a value beyond the range becomes. Libraries differ: torch casts
    E4M3 with "saturate" since 2.12 and "nan" before, E5M2 with "inf", the FNUZ codings with "nan"; ml_dtypes takes "nan",
    and "inf" for E5M2. Formats without NaN refuse NaN.

    Returns uint8 codes (uint16 for FP16 and BF16), same shape. Raises `InputError`.
    """
    check_choices(fmt, overflow, rounding, generator)
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    if generator is not None and rounding == "stochastic":
        flat = _round_stochastically(flat, fmt, generator)
    codes = _wide(flat, fmt, overflow) if fmt.bits == 16 else look_up(flat, lookup_table(fmt, overflow))
    if not fmt.has_nan and codes.size and int(codes.max()) == _NO_NAN:
        at = int(np.argmax(codes == _NO_NAN))
        raise InputError(f"element {at} is NaN, which {fmt.name} cannot hold; mend the tensor or use a format with NaN")
    return codes.reshape(np.shape(values))


def decode(codes: NDArray[Any], fmt: Format) -> Floats:
    """FP32 values of ``codes``, same shape; exact, since every format of at most 16 bits is part of FP32."""
    if fmt.bits == 16:
        if fmt.name == "fp16":
            halves = np.ascontiguousarray(codes, dtype=np.uint16).view(np.float16)
            return halves.astype(np.float32).reshape(codes.shape)
        patterns = np.ascontiguousarray(codes, dtype=np.uint16).astype(np.uint32) << 16
        values: Floats = patterns.view(np.float32)
        return values.reshape(codes.shape)
    table = decode_table(fmt)
    flat = np.ascontiguousarray(codes).reshape(-1)
    out = np.empty(flat.size, np.float32)
    for start in range(0, flat.size, CHUNK):
        np.take(table, flat[start : start + CHUNK], out=out[start : start + CHUNK], mode="wrap")
    return out.reshape(codes.shape)


def decode_table(fmt: Format) -> Floats:
    """Value of every code of a float format of at most 8 bits, shape (2 ** bits,)."""
    return _decode_table(fmt.element or fmt.name)


@cache
def _decode_table(name: str) -> Floats:
    fmt = get(name)
    if fmt.exponent_bits is None or fmt.mantissa_bits is None or fmt.bias is None or fmt.bits > 8:
        raise InputError(f"{fmt.name} is not a float of at most 8 bits; such a format is fp8_e4m3")
    codes = np.arange(2 ** int(fmt.bits))
    exponent = (codes >> fmt.mantissa_bits) & (2**fmt.exponent_bits - 1)
    mantissa = codes & (2**fmt.mantissa_bits - 1)
    if fmt.special == "scale":
        values = np.ldexp(1.0, exponent - fmt.bias)
        values[-1] = np.nan
    else:
        lead = (exponent > 0).astype(np.int64) << fmt.mantissa_bits
        values = np.ldexp((lead + mantissa).astype(np.float64), np.maximum(exponent, 1) - fmt.bias - fmt.mantissa_bits)
        values = np.where(codes >> (int(fmt.bits) - 1), -values, values)
    top = 2**fmt.exponent_bits - 1
    if fmt.special == "ieee":
        values = np.where(exponent == top, np.where(mantissa == 0, np.copysign(np.inf, values), np.nan), values)
    elif fmt.special == "fn":
        values = np.where((exponent == top) & (mantissa == 2**fmt.mantissa_bits - 1), np.nan, values)
    elif fmt.special == "fnuz":
        values[2 ** (int(fmt.bits) - 1)] = np.nan
    table: Floats = np.asarray(values, np.float32)
    table.setflags(write=False)
    return table


def lookup_table(fmt: Format, overflow: Overflow) -> NDArray[np.uint8]:
    """Code of every upper half of an FP32 pattern, its last bit standing for "some lower bit is set", shape (65536,).

    Seven mantissa bits with a sticky last one decide every rounding to at most three mantissa bits, ties included.
    """
    return _lookup_table(fmt.element or fmt.name, overflow)


@cache
def _lookup_table(name: str, overflow: Overflow) -> NDArray[np.uint8]:
    fmt = get(name)
    decoded = decode_table(fmt).astype(np.float64)
    with np.errstate(invalid="ignore"):
        values = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    last = _largest_code(fmt)
    grid = decoded[: last + 1]
    beyond = 2 * grid[-1] if fmt.special == "scale" else 2 * grid[-1] - grid[-2]
    middles = (grid + np.append(grid[1:], beyond)) / 2
    size = np.abs(values)
    codes = np.searchsorted(middles, size, side="left")
    tied = (codes <= last) & (size == middles[np.minimum(codes, last)])
    # E8M0 has no mantissa whose evenness could break a tie: halfway goes up, as in torch and ml_dtypes.
    codes = codes + (tied & ((codes % 2 == 1) | (fmt.special == "scale")))
    over = codes > last
    sign = np.signbit(values) if fmt.signed else np.zeros(values.shape, bool)
    high = 1 << (int(fmt.bits) - 1)
    nan = _nan_code(fmt)
    codes = np.where(over, {"saturate": last, "nan": nan, "inf": last + 1}[overflow], codes)
    negative_zero = (codes == 0) & (fmt.special == "fnuz")
    unsigned_code = over & (overflow == "nan") & (fmt.special == "fnuz")
    codes = np.where(sign & ~negative_zero & ~unsigned_code, codes | high, codes)
    if fmt.special == "scale":
        codes = np.where(values < 0, nan, codes)
    invalid = np.isnan(values)
    signed_nan = np.where(sign & (fmt.special in {"ieee", "fn"}), nan | high, nan)
    table = np.where(invalid, signed_nan, codes).astype(np.uint8)
    table.setflags(write=False)
    return table


def look_up(flat: Floats, table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """``table`` at the upper half of each pattern of ``flat`` (n,), with the sticky bit; shape (n,)."""
    out = np.empty(flat.size, np.uint8)
    bits = flat.view(np.uint32)
    for start in range(0, flat.size, CHUNK):
        some = bits[start : start + CHUNK]
        index = some >> 16
        index |= (some & 0xFFFF) != 0
        np.take(table, index, out=out[start : start + CHUNK], mode="wrap")
    return out


def _largest_code(fmt: Format) -> int:
    codes = 2 ** (int(fmt.bits) - (1 if fmt.signed else 0))
    spent = {"ieee": 2 ** (fmt.mantissa_bits or 0), "fn": 1, "scale": 1}.get(fmt.special, 0)
    return int(codes - 1 - spent)


def _nan_code(fmt: Format) -> int:
    half = 1 << (int(fmt.bits) - 1)
    return {"ieee": half - 1, "fn": half - 1, "fnuz": half, "scale": 2 * half - 1}.get(fmt.special, _NO_NAN)


def _wide(flat: Floats, fmt: Format, overflow: Overflow) -> Codes:
    out = np.empty(flat.size, np.uint16)
    exponent = 0x7C00 if fmt.name == "fp16" else 0x7F80
    for start in range(0, flat.size, CHUNK):
        some = flat[start : start + CHUNK]
        if fmt.name == "fp16":
            with np.errstate(over="ignore", invalid="ignore"):
                codes = some.astype(np.float16).view(np.uint16)
        else:
            codes = _to_bf16(some)
        if overflow != "inf":
            over = (codes & 0x7FFF) == exponent
            if over.any():
                codes = np.where(over, (codes & 0x8000) | (exponent - 1 if overflow == "saturate" else 0x7FFF), codes)
        out[start : start + CHUNK] = codes
    return out


def _to_bf16(values: Floats) -> NDArray[np.uint16]:
    bits = values.view(np.uint32)
    codes = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, codes).astype(np.uint16)


def _round_stochastically(flat: Floats, fmt: Format, generator: np.random.Generator) -> Floats:
    if fmt.mantissa_bits is None or fmt.bias is None or fmt.max_value is None:
        raise InputError(f"{fmt.name} has no grid to round to")
    out = np.empty_like(flat)
    for start in range(0, flat.size, CHUNK):
        some = flat[start : start + CHUNK].astype(np.float64)
        exponent = np.frexp(some)[1] - 1
        if fmt.special != "scale":
            exponent = np.maximum(exponent, 1 - fmt.bias)
        steps = exponent - fmt.mantissa_bits
        scaled = np.ldexp(some, -steps)
        low = np.floor(scaled)
        with np.errstate(invalid="ignore"):
            up = generator.random(some.size) < scaled - low
        rounded = np.ldexp(low + up, steps)
        with np.errstate(over="ignore"):
            out[start : start + CHUNK] = np.where(np.isfinite(some), rounded, some)
    return out


def check_choices(fmt: Format, overflow: str, rounding: str, generator: np.random.Generator | None) -> None:
    """Raise `InputError` for choices that `encode` cannot honour in ``fmt``."""
    if fmt.exponent_bits is None or fmt.bits > 16:
        raise InputError(f"{fmt.name} has no codes of a narrow float; such formats are bf16, fp8_e4m3 and fp4_e2m1")
    if overflow not in {"saturate", "nan", "inf"}:
        raise InputError(f"overflow {overflow!r} is not known; use saturate, nan or inf")
    if overflow == "inf" and not fmt.has_infinity:
        raise InputError(f"{fmt.name} has no infinity for overflow to become; use saturate or nan")
    if overflow == "nan" and not fmt.has_nan:
        raise InputError(f"{fmt.name} has no NaN for overflow to become; use saturate")
    if rounding not in {"nearest_even", "stochastic"}:
        raise InputError(f"rounding {rounding!r} is not known; use nearest_even or stochastic")
    if rounding == "stochastic" and generator is None:
        raise InputError("stochastic rounding needs a generator; give numpy.random.default_rng(seed)")
