"""The coding of single elements: pinned codes, overflow, both roundings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.formats.catalogue import get
from trilemma.formats.elements import decode, decode_table, encode

NARROW = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp8_e5m2fnuz", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1")

#: OFP8 rev. 1.0 table 1 and section 5; codes as torch 2.13 and ml_dtypes 0.6 give them.
PINNED = {
    "fp8_e4m3": {
        **{0.0: 0x00, 1.0: 0x38, -1.0: 0xB8, 448.0: 0x7E, 464.0: 0x7E, 2.0**-9: 0x01, 2.0**-10: 0x00},  # noqa: PIE800
        **{1.0625: 0x38, 1.1875: 0x3A, 0.0146484375: 0x08},  # noqa: PIE800
    },
    "fp8_e5m2": {1.0: 0x3C, 57344.0: 0x7B, 61439.0: 0x7B, -(2.0**-16): 0x81, 1.125: 0x3C, 1.375: 0x3E},
    "fp8_e4m3fnuz": {1.0: 0x40, 240.0: 0x7F, 2.0**-10: 0x01, -240.0: 0xFF},
    "fp8_e5m2fnuz": {1.0: 0x40, 57344.0: 0x7F, 2.0**-17: 0x01},
    "fp6_e2m3": {1.0: 0x08, 7.5: 0x1F, -7.5: 0x3F, 0.125: 0x01, 100.0: 0x1F},
    "fp6_e3m2": {1.0: 0x0C, 28.0: 0x1F, 0.0625: 0x01},
    "fp4_e2m1": {0.25: 0x0, 0.26: 0x1, 0.75: 0x2, 2.5: 0x4, 5.0: 0x6, 5.01: 0x7, 1e30: 0x7, -1e30: 0xF, -0.1: 0x8},
    "e8m0": {1.0: 127, 1.5: 128, 1.49: 127, 2.0**-127: 0, 2.0**127: 254, 0.0: 0},
    "bf16": {1.0: 0x3F80, 1.00390625: 0x3F80, 1.01171875: 0x3F82, -2.0: 0xC000},
    "fp16": {1.0: 0x3C00, 65504.0: 0x7BFF, 65519.0: 0x7BFF, 2.0**-24: 0x0001},
}
#: format: overflow mode: code of 1e9, and of an infinity
OVERFLOW = {
    "fp8_e4m3": {"saturate": 0x7E, "nan": 0x7F},
    "fp8_e5m2": {"saturate": 0x7B, "inf": 0x7C, "nan": 0x7F},
    "fp8_e4m3fnuz": {"saturate": 0x7F, "nan": 0x80},
    "fp8_e5m2fnuz": {"saturate": 0x7F, "nan": 0x80},
    "fp16": {"saturate": 0x7BFF, "inf": 0x7C00, "nan": 0x7FFF},
    "fp4_e2m1": {"saturate": 0x7},
}


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", sorted(PINNED))
def test_pinned_codes(name: str) -> None:
    values, codes = zip(*PINNED[name].items(), strict=True)
    assert encode(np.array(values), get(name)).tolist() == list(codes)


def test_negative_zero_keeps_its_sign_where_it_has_a_code() -> None:
    codes = [int(encode(np.array(-0.0), get(name))) for name in ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp4_e2m1")]
    assert codes == [0x80, 0x80, 0x00, 0x8]


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name in OVERFLOW for mode in OVERFLOW[name]])
def test_overflow_becomes_what_was_asked_for(name: str, mode: str) -> None:
    codes = encode(np.array([1e9, np.inf]), get(name), overflow=mode)
    assert codes.tolist() == [OVERFLOW[name][mode]] * 2


@pytest.mark.parametrize("name", [*NARROW, "e8m0", "fp16", "bf16"])
def test_every_code_survives_reading_and_writing(name: str) -> None:
    fmt = get(name)
    codes = np.arange(2**fmt.bits, dtype=np.uint16 if fmt.bits == 16 else np.uint8)
    values = decode(codes, fmt)
    kept = ~np.isnan(values)
    again = encode(values[kept], fmt, overflow="inf" if fmt.has_infinity else "saturate")
    assert np.array_equal(again, codes[kept])
    if fmt.has_nan:
        assert np.isnan(decode(encode(np.array([np.nan, -np.nan]), fmt), fmt)).all()
    finite = values[np.isfinite(values)]
    assert finite.max() == np.float32(fmt.max_value)
    assert finite.min() == np.float32(fmt.min_value)


@pytest.mark.parametrize("name", NARROW)
def test_nearest_even_is_nearest(name: str) -> None:
    fmt = get(name)
    table = decode_table(fmt)
    grid = np.unique(table[np.isfinite(table)])
    values = noise((4000,)) * np.float32(fmt.max_value / 4)
    values = np.clip(values, grid[0], grid[-1])
    nearest = np.abs(values[:, None] - grid).min(axis=1)
    assert np.array_equal(np.abs(decode(encode(values, fmt), fmt) - values), nearest)


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp4_e2m1", "bf16"])
def test_stochastic_rounding_is_unbiased_and_takes_neighbours_only(name: str) -> None:
    fmt = get(name)
    value = np.float32(1.1)
    rounded = decode(
        encode(np.full(40_000, value), fmt, rounding="stochastic", generator=np.random.default_rng(1)), fmt
    )
    low, high = np.unique(rounded)
    assert low < value < high
    assert high - low == pytest.approx(fmt.epsilon)
    assert rounded.mean() == pytest.approx(value, abs=float(4 * (high - low) / 2 / math.sqrt(40_000)))


def test_elements_without_nan_name_where_it_is() -> None:
    with pytest.raises(InputError, match="element 3 is NaN"):
        encode(np.array([0, 1, 2, np.nan]), get("fp4_e2m1"))
