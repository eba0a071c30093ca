"""What a layer's mixer does to past tokens: bytes read and FLOPs per rank, in decode and in prefill.

The projections around attention are matrix products like any other and are counted with the parameter tensors; here is
only what depends on the length of the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.models.architecture import CompressedAttention, LatentAttention, Mixer, RecurrentState, SoftmaxAttention
from trilemma.quantities import Numbers, ceil_div

#: Indexer keys are FP8 with one FP32 scale per token (DeepSeek-V3.2, inference/model.py: index_head_dim + 4 bytes).
_INDEX_SCALE_BYTES = 4
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


def decode_work(mixer: Mixer, *, context: Numbers, tp: Numbers, kv_bytes: float, dcp: Numbers = 1) -> Work:
    """Work of one decode token of one sequence in one layer, on one tensor-parallel rank.

    ``context`` tokens lie in the cache; ``kv_bytes`` is one cached element with its scales. A KV head is never split, so
    ranks beyond the KV heads read copies. MLA runs absorbed: scores and values are taken in the latent space, so a token
    costs ``2·heads·(2·kv_rank + rope_dim)`` FLOPs per cached token (DeepSeek-V2, 2024, section 2.1.2), and its one latent
    is read whole by every rank. ``dcp`` ranks share the cached tokens.
    """
    match mixer:
        case SoftmaxAttention():
            seen = _looked_at(mixer, np.asarray(context)) / dcp
            rank_kv = ceil_div(mixer.kv_heads, tp)
            width = mixer.k_dim + mixer.v_dim
            return Work(
                flops=2.0 * ceil_div(mixer.heads, tp) * width * seen, bytes=1.0 * rank_kv * width * kv_bytes * seen
            )
        case LatentAttention():
            seen = _chosen(mixer.index_topk, np.asarray(context)) / dcp
            heads = ceil_div(mixer.heads, tp)
            attended = Work(
                flops=2.0 * heads * (2 * mixer.kv_rank + mixer.rope_dim) * seen,
                bytes=1.0 * (mixer.kv_rank + mixer.rope_dim) * kv_bytes * seen,
            )
            return attended + _indexer(mixer, np.asarray(context))
        case CompressedAttention():
            entries = np.minimum(context, mixer.window)
            if mixer.stride:
                entries = entries + _chosen(mixer.index_topk, np.asarray(context) / mixer.stride)
            indexed = _indexer(mixer, np.asarray(context) / max(mixer.stride, 1))
            heads = ceil_div(mixer.heads, tp)
            return indexed + Work(
                flops=4.0 * heads * mixer.head_dim * entries, bytes=1.0 * mixer.head_dim * kv_bytes * entries
            )
        case RecurrentState():
            elements = ceil_div(mixer.heads, tp) * mixer.state_rows * mixer.state_columns
            read_and_written = 2.0 * elements * _state_bytes(mixer)
            return Work(flops=1.0 * _STATE_FLOPS * elements, bytes=read_and_written + 0.0 * np.asarray(context))


def prefill_work(mixer: Mixer, *, tokens: Numbers, cached: Numbers, tp: Numbers, kv_bytes: float) -> Work:
    """Work of one prompt of ``tokens`` new tokens behind ``cached`` ones, in one layer, on one rank.

    Causal attention: token i looks back on ``cached + i`` tokens, so ``tokens·cached + tokens²/2`` pairs, cut by windows
    and chunks. FLOPs per pair are ``2·heads·(k_dim + v_dim)`` (Dao 2023, section 4.1, halved for the causal mask); MLA
    runs unabsorbed with keys of ``nope + rope`` and values of ``v_dim``.
    """
    tokens, cached = np.asarray(tokens, dtype=float), np.asarray(cached, dtype=float)
    match mixer:
        case SoftmaxAttention():
            pairs = _pairs(tokens, cached, mixer.window)
            if mixer.chunk is not None:
                pairs = np.minimum(pairs, tokens * mixer.chunk / 2)
            width = mixer.k_dim + mixer.v_dim
            written_and_read = (2 * tokens + cached) * ceil_div(mixer.kv_heads, tp) * width * kv_bytes
            return Work(flops=2.0 * ceil_div(mixer.heads, tp) * width * pairs, bytes=written_and_read)
        case LatentAttention():
            pairs = _pairs(tokens, cached, mixer.index_topk)
            width = mixer.nope_dim + mixer.rope_dim + mixer.v_dim
            flops = 2.0 * ceil_div(mixer.heads, tp) * width * pairs
            flops = flops + _index_flops(mixer) * _pairs(tokens, cached, None)
            return Work(flops=flops, bytes=(2 * tokens + cached) * (mixer.kv_rank + mixer.rope_dim) * kv_bytes)
        case CompressedAttention():
            pairs = _pairs(tokens, cached, mixer.window)
            index_flops: Any = 0.0
            if mixer.stride:
                strided = _pairs(tokens, cached, None) / mixer.stride
                limit = tokens * (mixer.index_topk if mixer.index_topk is not None else np.inf)
                pairs = pairs + np.minimum(strided, limit)
                index_flops = _index_flops(mixer) * strided
            flops = 4.0 * ceil_div(mixer.heads, tp) * mixer.head_dim * pairs + index_flops
            return Work(flops=flops, bytes=(2 * tokens + cached) * mixer.head_dim * kv_bytes / max(mixer.stride, 1))
        case RecurrentState():
            elements = ceil_div(mixer.heads, tp) * mixer.state_rows * mixer.state_columns
            traffic = 2.0 * elements * _state_bytes(mixer) * np.ceil(tokens / _STATE_CHUNK)
            return Work(flops=1.0 * _STATE_FLOPS * elements * tokens, bytes=traffic)


def _looked_at(mixer: SoftmaxAttention, context: Any) -> Any:
    """Tokens that the newest one attends to: all, at most the window, or on average half a chunk once chunks are full."""
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


def _indexer(mixer: LatentAttention | CompressedAttention, candidates: Any) -> Work:
    """The sparse indexer scores every candidate; its keys are held whole by every rank."""
    if not mixer.index_dim:
        return Work()
    return Work(flops=_index_flops(mixer) * candidates, bytes=1.0 * (mixer.index_dim + _INDEX_SCALE_BYTES) * candidates)


def _state_bytes(mixer: RecurrentState) -> float:
    return 4.0 if mixer.state_format in ("fp32", "float32") else 2.0
