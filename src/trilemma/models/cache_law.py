"""One law for what a layer keeps of past tokens, a row for every kind of attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np

from trilemma.formats.formats import Format
from trilemma.quantities import Numbers, ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheLaw:
    """What one layer keeps per sequence on one tensor-parallel rank.

    ``fixed_bytes`` whatever the length (recurrent state); ``bytes_per_token`` for each stored entry; one entry per
    ``stride`` tokens; at most ``window`` tokens looked back on (None: all). ``shard`` says what decode context parallelism
    may divide: "tokens" the cached tokens, "none" stays replicated, "heads" is already divided by tensor parallelism.
    """

    kind: str
    fixed_bytes: Numbers = 0
    bytes_per_token: Numbers = 0
    stride: int = 1
    window: int | None = None
    shard: Literal["heads", "tokens", "none"] = "heads"


def joined(parts: tuple[CacheLaw, ...]) -> CacheLaw:
    """The caches of one layer as one law.

    Those that grow with the sequence are added up; bounded ones (windows beside compressed tokens, states) are counted whole
    in ``fixed_bytes``. Rates keep their shapes, (plans,) or scalar.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    growing = [part for part in parts if part.window is None]
    bounded = [part for part in parts if part.window is not None]
    if not growing:
        fixed = sum(part.fixed_bytes for part in parts) + sum(_full(part) for part in parts[1:])
        return CacheLaw(
            kind=first.kind, fixed_bytes=fixed, bytes_per_token=first.bytes_per_token, window=first.window,
            shard=first.shard,
        )  # fmt: skip
    return CacheLaw(
        kind=first.kind,
        fixed_bytes=sum(part.fixed_bytes for part in parts) + sum(_full(part) for part in bounded),
        bytes_per_token=sum(part.bytes_per_token for part in growing),
        stride=growing[0].stride,
        shard=first.shard,
    )


def _full(law: CacheLaw) -> Any:
    """Bytes of a bounded cache that is full."""
    return law.bytes_per_token * ceil_div(law.window or 0, law.stride)


def row_bytes(kv_format: Format, size: int) -> float:
    """Bytes of one cached row of ``size`` elements (one head of one token).

    Scales of whole tensors are constants of the model and cost nothing here; a format with a scale per channel keeps one
    per row (vLLM's int8, fp8 and int4 per-token-head caches: one FP32 scale for K and one for V of each token and head);
    a grouped format keeps one per group; packed formats (GGUF) are stored in whole blocks.
    """
    if kv_format.block_bytes:
        return ceil(size / kv_format.group) * kv_format.block_bytes
    bits = kv_format.bits * size
    match kv_format.granularity:
        case "channel":
            bits += kv_format.scale_bits + kv_format.zero_point_bits
        case "group":
            if kv_format.group:
                bits += ceil(size / kv_format.group) * (kv_format.scale_bits + kv_format.zero_point_bits)
    return bits / 8


def indexer_row(dim: int, indexer_format: Format | None) -> Any:
    """Bytes of one key of a sparse indexer; None is FP8 with one FP32 scale per 128 elements."""
    return dim + 4 * ceil(dim / 128) if indexer_format is None else whole(row_bytes(indexer_format, dim))


def no_bytes(tp: Numbers) -> Any:
    """Zero in the shape of ``tp``."""
    return np.zeros_like(np.asarray(tp)) if isinstance(tp, np.ndarray) else 0


def whole(value: float) -> Any:
    """An integer where ``value`` is one."""
    return int(value) if value == int(value) else value


def plain(value: Any) -> Any:
    """A numpy scalar as a Python number, arrays as they are."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value
    return whole(float(value))
