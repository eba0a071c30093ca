"""What a layer's mixer does to past tokens: bytes read and FLOPs per rank, in decode and in prefill.

The projections around attention are matrix products like any other and are counted with the parameter tensors; here is
only what depends on the length of the context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.architecture import CompressedAttention, LatentAttention, Mixer, RecurrentState, SoftmaxAttention
from trilemma.models.cache_law import CacheLaw, cache_laws
from trilemma.quantities import Numbers, ceil_div

#: Recurrent layers update their state once per token: decay, outer product, read-out: two FLOPs each per state element.
_STATE_FLOPS = 6
#: Recurrent prefill works in chunks and touches the state once per chunk (Mamba-2, Dao and Gu 2024, section 6).
_STATE_CHUNK = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """FLOPs and bytes of an operator on one rank; numbers or arrays with one entry per plan."""

    flops: Numbers = 0.0
    bytes: Numbers = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(flops=self.flops + other.flops, bytes=self.bytes + other.bytes)

    def times(self, factor: Numbers) -> Work:
        return Work(flops=self.flops * factor, bytes=self.bytes * factor)


def decode_work(mixer: Mixer, *, context: Numbers, tp: Numbers, kv_format: Format, dcp: Numbers = 1) -> Work:
    """Work of one decode token of one sequence in one layer, on one tensor-parallel rank.

    ``context`` tokens lie in the cache, which is read by its law (`cache_laws`): KV heads whole, windows and strides as
    kept, states read and written. MLA runs absorbed: scores and values are taken in the latent space, so a token costs
    ``2·heads·(2·kv_rank + rope_dim)`` FLOPs per cached token (DeepSeek-V2, 2024, section 2.1.2). Sparse attention scores
    every index key and reads what it chose. ``dcp`` ranks share the cached tokens.
    """
    context = np.asarray(context, dtype=float)
    if isinstance(mixer, SoftmaxAttention) and mixer.shares_cache:
        mixer = replace(mixer, shares_cache=False)  # another layer keeps the cache, but this one reads it too
    laws = cache_laws(mixer, tp=tp, kv_format=kv_format)
    traffic = sum((_read(law, mixer, context, dcp) for law in laws), start=np.float64(0.0))
    return Work(flops=_decode_flops(mixer, context, tp, dcp), bytes=traffic)


def _read(law: CacheLaw, mixer: Mixer, context: Any, dcp: Numbers) -> Any:
    """Bytes that one token reads of one cache (and writes, where it is a state)."""
    if isinstance(mixer, RecurrentState):
        return 2.0 * law.fixed_bytes + 0.0 * context
    if law.kind == "compressor":
        return 0.0  # touched once per stride
    if isinstance(mixer, SoftmaxAttention):
        entries = _looked_at(mixer, context)
    else:
        entries = np.minimum(context, law.window if law.window is not None else np.inf) / law.stride
        if law.kind in ("latent", "compressed") and mixer.index_topk is not None:
            entries = np.minimum(entries, mixer.index_topk)
    shared = 1 if law.shard == "none" else dcp
    return law.fixed_bytes + law.bytes_per_token * entries / shared


def _decode_flops(mixer: Mixer, context: Any, tp: Numbers, dcp: Numbers) -> Any:
    heads = ceil_div(mixer.heads, tp)
    match mixer:
        case SoftmaxAttention():
            return 2.0 * heads * (mixer.k_dim + mixer.v_dim) * _looked_at(mixer, context) / dcp
        case LatentAttention():
            attended = 2.0 * heads * (2 * mixer.kv_rank + mixer.rope_dim) * _chosen(mixer.index_topk, context) / dcp
            return attended + _index_flops(mixer) * context
        case CompressedAttention():
            entries = np.minimum(context, mixer.window)
            if mixer.stride > 1:
                entries = entries + _chosen(mixer.index_topk, context / mixer.stride)
            return 4.0 * heads * mixer.head_dim * entries + _index_flops(mixer) * context / max(mixer.stride, 1)
        case RecurrentState():
            return 1.0 * _STATE_FLOPS * heads * mixer.state_rows * mixer.state_columns + 0.0 * context


def prefill_work(mixer: Mixer, *, tokens: Numbers, cached: Numbers, tp: Numbers, kv_format: Format) -> Work:
    """Work of one prompt of ``tokens`` new tokens behind ``cached`` ones, in one layer, on one rank.

    Causal attention: token i looks back on ``cached + i`` tokens, so ``tokens·cached + tokens²/2`` pairs, cut by windows
    and chunks. FLOPs per pair are ``2·heads·(k_dim + v_dim)`` (Dao 2023, section 4.1, halved for the causal mask); MLA
    runs unabsorbed with keys of ``nope + rope`` and values of ``v_dim``. The cache is written once and read once.
    """
    tokens, cached = np.asarray(tokens, dtype=float), np.asarray(cached, dtype=float)
    laws = cache_laws(mixer, tp=tp, kv_format=kv_format)
    traffic: Any
    if isinstance(mixer, RecurrentState):
        traffic = sum(2.0 * law.fixed_bytes for law in laws) * np.ceil(tokens / _STATE_CHUNK)
    else:
        traffic = sum(
            law.bytes_per_token * (2 * tokens + cached) / law.stride for law in laws if law.kind != "compressor"
        )
    return Work(flops=_prefill_flops(mixer, tokens, cached, tp), bytes=traffic)


def _prefill_flops(mixer: Mixer, tokens: Any, cached: Any, tp: Numbers) -> Any:
    heads = ceil_div(mixer.heads, tp)
    everything = _pairs(tokens, cached, None)
    match mixer:
        case SoftmaxAttention():
            pairs = tokens * mixer.cross_tokens if mixer.cross_tokens else _pairs(tokens, cached, mixer.window)
            if mixer.chunk is not None:
                pairs = np.minimum(pairs, tokens * mixer.chunk / 2)
            return 2.0 * heads * (mixer.k_dim + mixer.v_dim) * pairs
        case LatentAttention():
            width = mixer.nope_dim + mixer.rope_dim + mixer.v_dim
            return 2.0 * heads * width * _pairs(tokens, cached, mixer.index_topk) + _index_flops(mixer) * everything
        case CompressedAttention():
            pairs = _pairs(tokens, cached, mixer.window)
            if mixer.stride <= 1:
                return 4.0 * heads * mixer.head_dim * pairs
            chosen = tokens * (mixer.index_topk if mixer.index_topk is not None else np.inf)
            pairs = pairs + np.minimum(everything / mixer.stride, chosen)
            return 4.0 * heads * mixer.head_dim * pairs + _index_flops(mixer) * everything / mixer.stride
        case RecurrentState():
            return 1.0 * _STATE_FLOPS * heads * mixer.state_rows * mixer.state_columns * tokens


def _looked_at(mixer: SoftmaxAttention, context: Any) -> Any:
    """Tokens that the newest one attends to: all, at most the window, or on average half a chunk once chunks are full."""
    if mixer.cross_tokens:
        return 0.0 * context + mixer.cross_tokens
    if mixer.window is not None:
        return np.minimum(context, mixer.window)
    if mixer.chunk is not None:
        return np.where(context <= mixer.chunk, context, mixer.chunk / 2)
    return context


def _pairs(tokens: Any, cached: Any, window: int | None) -> Any:
    """Query-key pairs under the causal mask; ``window`` bounds what one query sees."""
    full = tokens * cached + tokens * tokens / 2
    if window is None:
        return full
    growing = np.clip(window - cached, 0, tokens)  # queries that do not fill the window yet
    return growing * cached + growing * growing / 2 + (tokens - growing) * window


def _chosen(topk: int | None, candidates: Any) -> Any:
    return candidates if topk is None else np.minimum(candidates, topk)


def _index_flops(mixer: LatentAttention | CompressedAttention) -> float:
    return 2.0 * (mixer.index_heads or 0) * (mixer.index_dim or 0)
