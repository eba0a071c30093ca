"""One law for what a layer keeps of past tokens, a row for every kind of attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np

from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import CompressedAttention, LatentAttention, Mixer, RecurrentState, SoftmaxAttention
from trilemma.models.blocks.compressed import overlap
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


def cache_law(
    mixer: Mixer,
    *,
    tp: Numbers,
    kv_format: Format,
    indexer_format: Format | None = None,
    speculative_tokens: int = 0,
) -> CacheLaw:
    """What one layer keeps on one rank of ``tp``, as one law; `cache_laws` tells its caches apart.

    Where a layer has several caches, those that grow with the sequence are added up and bounded ones (windows beside
    compressed tokens, states) are counted whole in ``fixed_bytes``. ``tp``: ranks, scalar or array (plans,); rates have the
    same shape. ``indexer_format``: None is the engine's FP8 with one FP32 scale a key.
    """
    parts = cache_laws(
        mixer, tp=tp, kv_format=kv_format, indexer_format=indexer_format, speculative_tokens=speculative_tokens
    )
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


def cache_laws(
    mixer: Mixer,
    *,
    tp: Numbers,
    kv_format: Format,
    indexer_format: Format | None = None,
    speculative_tokens: int = 0,
) -> tuple[CacheLaw, ...]:
    """The caches of one layer, each by itself: attention first, then indexer, window and states. See `cache_law`."""
    match mixer:
        case SoftmaxAttention():
            return (grouped_query_law(mixer, tp=tp, kv_format=kv_format),)
        case LatentAttention():
            return latent_laws(mixer, tp=tp, kv_format=kv_format, indexer_format=indexer_format)
        case CompressedAttention():
            return compressed_laws(mixer, tp=tp, kv_format=kv_format, indexer_format=indexer_format)
        case RecurrentState():
            return (recurrent_law(mixer, tp=tp, speculative_tokens=speculative_tokens),)


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


def grouped_query_law(mixer: SoftmaxAttention, *, tp: Numbers, kv_format: Format) -> CacheLaw:
    """What one layer of grouped-query attention keeps per token on one tensor-parallel rank.

    ``ceil(kv_heads / tp) · (k_dim + v_dim) · bytes`` (Ainslie et al. 2023; MHA is kv_heads = heads). A head is never
    split, so ranks beyond the KV heads hold copies: tp = 16 costs what tp = 8 costs for eight KV heads, and decode
    context parallelism may divide the tokens among the copies.
    """
    kind = "sliding" if mixer.window else "chunked" if mixer.chunk else "full"
    if mixer.shares_cache:
        return CacheLaw(kind="shared", bytes_per_token=_zero(tp))
    per_head = row_bytes(kv_format, mixer.k_dim) + row_bytes(kv_format, mixer.v_dim)
    rate = _heads(mixer.kv_heads, tp) * _whole(per_head)
    if mixer.cross_tokens:
        return CacheLaw(kind="cross", fixed_bytes=rate * mixer.cross_tokens, bytes_per_token=_zero(tp))
    return CacheLaw(kind=kind, bytes_per_token=rate, window=mixer.window or mixer.chunk)


def latent_laws(
    mixer: LatentAttention, *, tp: Numbers, kv_format: Format, indexer_format: Format | None = None
) -> tuple[CacheLaw, ...]:
    """MLA: ``(kv_rank + rope_dim) · bytes``, a whole copy on every rank (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    With the sparse indexer an FP8 cache keeps the rope key in 16 bits and an FP32 scale per 128 elements of the latent:
    512 + 4·4 + 64·2 = 656 bytes (vLLM's fp8_ds_mla); the indexer's own key takes 128 bytes and one FP32 scale.
    """
    if mixer.index_dim and kv_format.bits == 8:
        latent: float = mixer.kv_rank + 4 * ceil(mixer.kv_rank / 128) + 2 * mixer.rope_dim
    else:
        latent = row_bytes(kv_format, mixer.kv_rank + mixer.rope_dim)
    laws = [CacheLaw(kind="latent", bytes_per_token=_whole(latent) + _zero(tp), shard="tokens")]
    if mixer.index_dim:
        laws.append(
            CacheLaw(
                kind="indexer", bytes_per_token=_indexer_row(mixer.index_dim, indexer_format) + _zero(tp), shard="none"
            )
        )
    return tuple(laws)


def compressed_laws(
    mixer: CompressedAttention, *, tp: Numbers, kv_format: Format, indexer_format: Format | None = None
) -> tuple[CacheLaw, ...]:
    """DeepSeek-V4: one latent per ``stride`` tokens, a window of the newest, an indexer, and the compressor's state.

    An FP8 entry is 448 + 64·2 + 8 = 584 bytes (UE8M0 scales, one per 64 elements, padded to 8); the FP32 state of a
    compressor is two rows of ``overlap · dim`` for each of the last ``overlap · stride`` tokens. Nothing is cut by tensor
    parallelism (vLLM: deepseek_v4 attention and compressor modules, sparse_swa backend).
    """
    entry = _compressed_entry(mixer, kv_format)
    zero = _zero(tp)
    window = CacheLaw(kind="window", bytes_per_token=entry + zero, window=mixer.window, shard="none")
    if mixer.stride <= 1:
        return (window,)
    laws = [CacheLaw(kind="compressed", bytes_per_token=entry + zero, stride=mixer.stride, shard="none")]
    if mixer.index_dim:
        rate = _indexer_row(mixer.index_dim, indexer_format) + zero
        laws.append(CacheLaw(kind="indexer", bytes_per_token=rate, stride=mixer.stride, shard="none"))
    laws.append(window)
    for dim in (mixer.head_dim, mixer.index_dim):
        if dim:
            folds = overlap(mixer.stride)
            state = 2 * folds * dim * 4 + zero
            laws.append(CacheLaw(kind="compressor", bytes_per_token=state, window=folds * mixer.stride, shard="none"))
    return tuple(laws)


def recurrent_law(state: RecurrentState, *, tp: Numbers, speculative_tokens: int = 0) -> CacheLaw:
    """A constant per sequence: the recurrent state and the tail of the short convolution, both cut by heads.

    ``heads/tp · rows · columns`` in ``state_format`` and ``channels/tp · (width − 1 + drafts)`` in ``conv_format`` (vLLM:
    MambaStateShapeCalculator). Mamba-2 groups that do not divide by ``tp`` are copied until they do.
    """
    heads = ceil_div(state.heads, tp)
    rows = heads * state.state_rows * state.state_columns * catalogue.get(state.state_format).bits / 8
    channels: Any = state.conv_channels
    if state.kind == "mamba2":
        extra = np.where(np.asarray(state.key_heads) % tp == 0, 0, np.asarray(tp) - state.key_heads)
        channels = channels + 2 * np.maximum(extra, 0) * state.state_columns
    tail = ceil_div(channels, tp) * (max(state.conv_width - 1, 0) + (speculative_tokens if state.conv_width else 0))
    total = rows + tail * catalogue.get(state.conv_format).bits / 8
    return CacheLaw(kind=state.kind, fixed_bytes=_plain(total), shard="heads")


def _compressed_entry(mixer: CompressedAttention, kv_format: Format) -> Any:
    if kv_format.bits == 8:
        latent = mixer.head_dim - mixer.rope_dim
        return latent + 2 * mixer.rope_dim + 8 * ceil(latent / 512)
    return _whole(row_bytes(kv_format, mixer.head_dim))


def _indexer_row(dim: int, indexer_format: Format | None) -> Any:
    return dim + 4 * ceil(dim / 128) if indexer_format is None else _whole(row_bytes(indexer_format, dim))


def _heads(kv_heads: int, tp: Numbers) -> Any:
    return ceil_div(kv_heads, tp)


def _zero(tp: Numbers) -> Any:
    """Zero in the shape of ``tp``."""
    return np.zeros_like(np.asarray(tp)) if isinstance(tp, np.ndarray) else 0


def _whole(value: float) -> Any:
    return int(value) if value == int(value) else value


def _plain(value: Any) -> Any:
    """A numpy scalar as a Python number, arrays as they are."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value
    return _whole(float(value))
