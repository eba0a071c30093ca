"""How much of a tensor a number format keeps: signal over quantisation noise on data of three shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError
from trilemma.formats import gguf_blocks
from trilemma.formats.catalogue import get
from trilemma.formats.codecs import round_trip
from trilemma.formats.elements import Floats
from trilemma.formats.formats import Format

#: What each kind of data stands for.
DATA_KINDS = {
    "normal": "standard normal, as most weights",
    "heavy": "Student's t with 4 degrees of freedom, as activations and gradients",
    "outlier": "standard normal, one column in 256 thirty times as large, as activations with outlier channels",
}
#: What `measure` reports: one SQNR per kind of data, and that of the ordinary columns beside the outliers.
MEASURES = (*DATA_KINDS, "beside outliers")
_OUTLIERS = slice(None, None, 256)
_ROWS, _COLUMNS, _SEED = 128, 1024, 2026


def sqnr_db(values: NDArray[Any], kept: NDArray[Any]) -> float:
    """Signal to quantisation noise in dB: 10 log10(Σ values² / Σ (values − kept)²); infinite where nothing is lost.

    NaN where ``values`` are all zero. Raises `InputError` for shapes that differ.
    """
    if values.shape != kept.shape:
        raise InputError(f"shapes {values.shape} and {kept.shape} differ; compare a tensor with its own round trip")
    exact = values.astype(np.float64)
    signal = float(np.square(exact).sum())
    noise = float(np.square(exact - kept).sum())
    if noise == 0:
        return math.inf if signal else math.nan
    return 10 * math.log10(signal / noise)


@cache
def sample(kind: str) -> Floats:
    """The 128 × 1024 values of one of `DATA_KINDS`, the same at every call."""
    if kind not in DATA_KINDS:
        raise InputError(f"data kind {kind!r} is not known; use {', '.join(DATA_KINDS)}")
    rng = np.random.default_rng(_SEED)
    if kind == "heavy":
        values = rng.standard_t(4, (_ROWS, _COLUMNS))
    else:
        values = rng.standard_normal((_ROWS, _COLUMNS))
        if kind == "outlier":
            values[:, _OUTLIERS] *= 30
    made = values.astype(np.float32)
    made.setflags(write=False)
    return made


def measure(fmt: Format | str) -> Mapping[str, float] | None:
    """SQNR in dB of ``fmt`` by `MEASURES`; None for formats it says nothing about.

    Those are scale types, integers without a scale (their range is up to the tensor), and formats without an encoder.
    """
    fmt = get(fmt) if isinstance(fmt, str) else fmt
    if fmt.special == "scale" or (fmt.kind == "int" and fmt.granularity == "none"):
        return None
    if fmt.kind == "packed" and fmt.name not in gguf_blocks.ENCODERS:
        return None
    kept = {kind: round_trip(sample(kind), fmt) for kind in DATA_KINDS}
    results = {kind: sqnr_db(sample(kind), kept[kind]) for kind in DATA_KINDS}
    ordinary = np.ones(_COLUMNS, bool)
    ordinary[_OUTLIERS] = False
    results["beside outliers"] = sqnr_db(sample("outlier")[:, ordinary], kept["outlier"][:, ordinary])
    return MappingProxyType(results)
