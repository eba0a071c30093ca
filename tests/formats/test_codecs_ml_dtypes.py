"""Element codings against ml_dtypes: every code, and casts of 1.2 million values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")

from trilemma.formats.catalogue import get  # noqa: E402
from trilemma.formats.elements import decode, encode  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

#: format: (type, what its cast makes of overflow in ml_dtypes 0.6)
ML_DTYPES = {
    "fp8_e4m3": ("float8_e4m3fn", "nan"),
    "fp8_e5m2": ("float8_e5m2", "inf"),
    "fp8_e4m3fnuz": ("float8_e4m3fnuz", "nan"),
    "fp8_e5m2fnuz": ("float8_e5m2fnuz", "nan"),
    "bf16": ("bfloat16", "inf"),
    "fp4_e2m1": ("float4_e2m1fn", "saturate"),
    "fp6_e2m3": ("float6_e2m3fn", "saturate"),
    "fp6_e3m2": ("float6_e3m2fn", "saturate"),
}


@pytest.fixture(scope="module")
def patterns() -> np.ndarray:
    """Any FP32 pattern, and values around 1 at every magnitude that 8-bit floats know: 1.2 million."""
    rng = np.random.default_rng(2026)
    anything = rng.integers(0, 2**32, 600_000, dtype=np.uint32).view(np.float32)
    near = rng.standard_normal(600_000) * np.exp2(rng.integers(-20, 20, 600_000))
    return np.concatenate([anything, near.astype(np.float32)])


def same(codes: np.ndarray, others: np.ndarray, fmt: Any) -> bool:
    """Equal codes; NaN may be spelt in several ways."""
    values, theirs = decode(codes, fmt), decode(others, fmt)
    return bool(np.all((codes == others) | (np.isnan(values) & np.isnan(theirs))))


@pytest.mark.parametrize("name", sorted(ML_DTYPES))
def test_ml_dtypes_casts(name: str, patterns: np.ndarray) -> None:
    kind, overflow = ML_DTYPES[name]
    fmt = get(name)
    values = patterns if fmt.has_nan else patterns[~np.isnan(patterns)]
    theirs = values.astype(getattr(ml_dtypes, kind)).view(np.uint16 if fmt.bits == 16 else np.uint8)
    assert same(encode(values, fmt, overflow=overflow), theirs, fmt)


@pytest.mark.parametrize("name", [*sorted(ML_DTYPES), "e8m0"])
def test_every_code_reads_as_in_ml_dtypes(name: str) -> None:
    fmt = get(name)
    kind = getattr(ml_dtypes, ML_DTYPES[name][0] if name in ML_DTYPES else "float8_e8m0fnu")
    codes = np.arange(2**fmt.bits, dtype=np.uint16 if fmt.bits == 16 else np.uint8)
    np.testing.assert_array_equal(decode(codes, fmt), codes.view(kind).astype(np.float32))
