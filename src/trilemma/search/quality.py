"""What a change of precision is published to cost in answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.models.quantized import find_scheme

UNKNOWN = "unknown"


def weight_quality(scheme: str) -> str:
    """Published loss of storing weights as ``scheme``, with the models it was measured on and by whom; else "unknown"."""
    return _row("scheme", find_scheme(scheme).name)


def cache_quality(kv_dtype: str) -> str:
    """Published loss of keeping the cache as ``kv_dtype``; else "unknown"."""
    return _row("kv_cache", kv_dtype)


def _row(section: str, name: str) -> str:
    for row in _published()[section]:
        if name in row["names"]:
            return f"{row['loss']} ({row['models']}; {row['source'].partition(';')[0]})"
    return UNKNOWN


@cache
def _published() -> Mapping[str, Any]:
    return read_data("coefficients/published_quality.toml")
