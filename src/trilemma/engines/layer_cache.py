"""What each layer keeps of past tokens on one rank, for engines with one pool for all layers of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.architecture import Layer
from trilemma.models.cache_law import CacheLaw
from trilemma.quantities import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCache:
    """One layer: ``full`` bytes for each token of a sequence, ``window`` bytes for each of the newest ``span``, ``state``
    bytes a sequence whatever its length, ``indexer`` the part of ``full`` that a sparse indexer keeps. Scalars or (plans,).
    """

    full: Any = 0.0
    window: Any = 0.0
    span: int = 0
    state: Any = 0.0
    indexer: Any = 0.0


def layer_caches(
    layers: Sequence[Layer],
    *,
    tp: Numbers,
    kv_format: Format,
    value_format: Format | None = None,
    draft_tokens: int = 0,
) -> list[LayerCache]:
    """The caches of ``layers`` in order. ``value_format``: that of V where it differs from K's."""
    known: dict[Any, LayerCache] = {}
    found = []
    for layer in layers:
        key = layer.mixer
        if key not in known:
            known[key] = _of_layer(layer, tp, kv_format, value_format or kv_format, draft_tokens)
        found.append(known[key])
    return found


def _of_layer(layer: Layer, tp: Numbers, keys: Format, values: Format, draft_tokens: int) -> LayerCache:
    mixer = layer.mixer
    if mixer is None or mixer.borrows_cache:
        return LayerCache(full=np.zeros(np.shape(tp)))
    laws = mixer.cache_laws(tp=tp, kv_format=keys, speculative_tokens=draft_tokens)
    if mixer.keeps_state:
        return LayerCache(state=np.asarray(laws[0].fixed_bytes, dtype=float))
    share = mixer.key_share
    if values is not keys and share is not None:
        others = mixer.cache_laws(tp=tp, kv_format=values)
        laws = tuple(
            replace(law, bytes_per_token=np.asarray(law.bytes_per_token, dtype=float) * share
                    + np.asarray(other.bytes_per_token, dtype=float) * (1 - share))
            for law, other in zip(laws, others, strict=True)
        )  # fmt: skip
    if mixer.look_back is not None:
        rate = np.asarray(laws[0].bytes_per_token, dtype=float)
        return LayerCache(window=rate, span=mixer.look_back[1], full=np.zeros(np.shape(tp)))
    return _of_parts(laws, tp)


def _of_parts(laws: Sequence[CacheLaw], tp: Numbers) -> LayerCache:
    """What grows, strides counted; windows and compressor states of a sequence as fixed."""
    zero = np.zeros(np.shape(tp))
    growing = [law for law in laws if law.window is None]
    bounded = [law for law in laws if law.window is not None]
    return LayerCache(
        full=zero + sum(np.asarray(law.bytes_per_token, dtype=float) / law.stride for law in growing),
        indexer=zero
        + sum(np.asarray(law.bytes_per_token, dtype=float) / law.stride for law in growing if law.kind == "indexer"),
        state=zero
        + sum(np.asarray(law.fixed_bytes, dtype=float) for law in laws)
        + sum(np.asarray(law.bytes_per_token, dtype=float) * (law.window or 0) for law in bounded),
    )


def summed(values: Sequence[Any], start: Numbers, stop: Numbers, shape: tuple[int, ...]) -> Any:
    """The sum of per-layer ``values`` (scalars or arrays (plans,)) over layers ``start`` up to ``stop`` of each plan."""
    table = np.zeros((len(values) + 1, *shape))
    for index, value in enumerate(values):
        table[index + 1] = table[index] + value
    begins = np.broadcast_to(np.asarray(start), shape)
    ends = np.broadcast_to(np.asarray(stop), shape)
    picked = np.take_along_axis(table, ends[None], axis=0) - np.take_along_axis(table, begins[None], axis=0)
    return picked[0]
