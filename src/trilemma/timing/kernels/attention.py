"""Attention kernels: decode reads a cache, prefill multiplies pairs under a causal mask. Grouped heads, windows, caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.quantities import Numbers
from trilemma.timing.kernels.fitted import KernelCoefficients, Parameter
from trilemma.timing.kernels.shapes import MICRO, NANO, causal_pairs, rounded_max, seen, waves

DECODE_PARAMETERS = (
    Parameter(name="stream_share", start=0.85, low=0.05, high=1.1, meaning="share of bandwidth at which a cache is read"),
    Parameter(name="fixed_us", start=8.0, low=0.1, high=100.0, meaning="microseconds of any launch"),
    Parameter(name="l2_fraction", start=0.7, low=0.05, high=2.0, meaning="part of L2 in which a cache stays warm"),
    Parameter(name="l2_share", start=2.0, low=0.5, high=12.0, meaning="rate of a warm cache over memory bandwidth"),
    Parameter(name="block_us", start=1.0, low=0.0, high=60.0, meaning="microseconds of one sequence and KV head"),
    Parameter(name="overlap_power", start=2.0, low=1.0, high=20.0, meaning="norm that joins arithmetic and reading"),
    Parameter(name="log_us", start=0.3, low=0.0, high=40.0, meaning="microseconds for each doubling of the context"),
    Parameter(name="compute_share", start=0.2, low=0.005, high=5.0, meaning="share of the BF16 peak on padded groups"),
    Parameter(name="token_ns", start=3.0, low=0.0, high=200.0, meaning="nanoseconds of one cached token in a block"),
    Parameter(name="wave_tail", start=0.3, low=0.0, high=1.0, meaning="share of an unfilled last wave that is paid"),
    Parameter(name="head_us", start=1.0, low=0.0, high=30.0, meaning="microseconds of one query head of a wide group"),
    Parameter(
        name="window_alone", start=0.0, low=0.0, high=1.0, choices=(0.0, 1.0),
        meaning="1 where query heads of windowed layers are not grouped",
    ),
    Parameter(
        name="splits_context", start=1.0, low=0.0, high=1.0, choices=(0.0, 1.0),
        meaning="1 where several blocks share one context",
    ),
    Parameter(
        name="widest_group", start=1024.0, low=1.0, high=1024.0, choices=(32.0, 1024.0),
        meaning="query heads that may share a KV head; wider groups read it head by head",
    ),
)  # fmt: skip

PREFILL_PARAMETERS = (
    Parameter(name="compute_share", start=0.5, low=0.02, high=1.3, meaning="share of the dense peak in long prompts"),
    Parameter(name="half_tokens", start=50.0, low=0.0, high=3000.0, meaning="prompt length that halves the rate"),
    Parameter(name="stream_share", start=0.6, low=0.05, high=1.1, meaning="share of bandwidth for q, k, v and output"),
    Parameter(name="l2_fraction", start=0.7, low=0.05, high=2.0, meaning="part of L2 in which q, k, v stay warm"),
    Parameter(name="l2_share", start=1.5, low=0.5, high=12.0, meaning="rate of warm q, k, v over memory bandwidth"),
    Parameter(name="fixed_us", start=6.0, low=0.1, high=300.0, meaning="microseconds of any launch"),
    Parameter(name="wave_tail", start=0.5, low=0.0, high=1.0, meaning="share of an unfilled last wave that is paid"),
    Parameter(name="overlap_power", start=3.0, low=1.0, high=20.0, meaning="norm that joins arithmetic and memory"),
    Parameter(name="log_us", start=0.3, low=0.0, high=60.0, meaning="microseconds for each doubling of the prompt"),
)  # fmt: skip

#: Rows of a tensor-core instruction: a group of query heads that share a KV head is padded to it in decode.
_GROUP_ROWS = 16
#: The fewest cached tokens that a block of its own reads.
_SPLIT_TOKENS = 256
#: Queries of one thread block in prefill (FlashAttention-2 and -3 use 64 to 192; Dao 2023, section 3.3).
_QUERY_ROWS = 128
_ACTIVATION_BYTES = 2.0


def decode_attention_s(
    c: KernelCoefficients,
    batch: Numbers,
    context: Numbers,
    heads: Numbers,
    kv_heads: Numbers,
    head_dim: Numbers,
    *,
    window: Numbers = 0,
    kv_bytes: Numbers = 2.0,
) -> Any:
    """Seconds of one layer's decode attention on one card: ``batch`` sequences of ``context`` cached tokens each.

    ``heads`` and ``kv_heads`` are those of the rank; ``window`` bounds what is read (0: nothing does); ``kv_bytes`` is the
    size of a cached element. Bytes: keys and values once, queries and outputs; caches that fit into L2 are read faster.
    Arithmetic: ``4·heads·context·head_dim`` FLOPs a sequence with each group of query heads padded to 16 rows (grouped
    queries run on tensor cores: Ainslie et al. 2023), plus a fixed cost of every sequence and KV head.

    Numbers or arrays that broadcast.
    """
    batch, heads, kv_heads, head_dim = (np.asarray(x, dtype=float) for x in (batch, heads, kv_heads, head_dim))
    read = seen(context, window)
    cached = batch * 2 * read * kv_heads * head_dim * kv_bytes
    n_bytes = cached + 2 * batch * heads * head_dim * _ACTIVATION_BYTES
    group = heads / kv_heads
    flops = 4 * batch * kv_heads * np.ceil(group / _GROUP_ROWS) * _GROUP_ROWS * read * head_dim
    shared = cache_reading_s(c, n_bytes=n_bytes, flops=flops, blocks=batch * kv_heads, length=read)
    alone_s = c["head_us"] * MICRO * batch * heads / max(c.multiprocessors, 1.0)
    reread_s = cached * group / (max(c["l2_share"], c["stream_share"]) * c.bytes_per_s)
    ungrouped = (group > c["widest_group"]) | ((np.asarray(window) > 0) & (c["window_alone"] > 0) & (group > 1))
    return np.where(ungrouped, shared + np.maximum(alone_s, reread_s), shared)


def cache_reading_s(c: KernelCoefficients, *, n_bytes: Any, flops: Any, blocks: Any, length: Any) -> Any:
    """Seconds of a decode kernel that reads ``n_bytes`` in ``blocks`` (sequences × KV heads) of ``length`` tokens.

    Where the kernel splits, few blocks are cut along the context until they fill the card (Dao et al. 2023, Flash-Decoding),
    256 tokens at least a part. A block reads its tokens one after another, whatever the others do.

    Numbers or arrays that broadcast.
    """
    sms = max(c.multiprocessors, 1.0)
    reading_s = n_bytes / (c.bytes_per_s * _cache_share(c, n_bytes))
    if c.multiprocessors > 0:
        most = np.ceil(length / _SPLIT_TOKENS) if c["splits_context"] else 1.0
        parts = np.clip(np.floor(2 * sms / blocks), 1.0, most)
        rounds = waves(blocks * parts, sms, c["wave_tail"])
        reading_s = np.maximum(reading_s, rounds * length / parts * c["token_ns"] * NANO)
    compute_s = flops / (c["compute_share"] * c.flops_per_s) + c["block_us"] * MICRO * blocks / sms
    fixed_s = (c["fixed_us"] + c["log_us"] * np.log2(1 + length / 128)) * MICRO
    return fixed_s + rounded_max(reading_s, compute_s, c["overlap_power"])


def _cache_share(c: KernelCoefficients, n_bytes: Any) -> Any:
    """Share of bandwidth: the warm rate for caches below a part of L2, memory's above, a smooth step between."""
    if c.l2_bytes <= 0:
        return c["stream_share"]
    warm = 1 / (1 + (n_bytes / (c["l2_fraction"] * c.l2_bytes)) ** 4)
    return c["stream_share"] * (1 - warm) + c["l2_share"] * warm


def prefill_attention_s(
    c: KernelCoefficients,
    batch: Numbers,
    tokens: Numbers,
    heads: Numbers,
    kv_heads: Numbers,
    head_dim: Numbers,
    *,
    cached: Numbers = 0,
    window: Numbers = 0,
    kv_bytes: Numbers = 2.0,
) -> Any:
    """Seconds of one layer's causal attention over ``batch`` prompts of ``tokens`` new tokens behind ``cached`` ones.

    FLOPs: ``4·heads·head_dim`` a query-key pair (Dao 2023, section 4.1), queries in blocks of 128, blocks in waves; a single
    wave lasts as long as its longest block. Bytes: q, k, v, output in 16 bits, the cache written at ``kv_bytes``.

    Numbers or arrays that broadcast.
    """
    return masked_product_s(
        c, batch, tokens, heads, kv_heads, head_dim, head_dim, cached=cached, window=window, kv_bytes=kv_bytes
    )


def masked_product_s(
    c: KernelCoefficients,
    batch: Numbers,
    tokens: Numbers,
    heads: Numbers,
    kv_heads: Numbers,
    key_dim: Numbers,
    value_dim: Numbers,
    *,
    cached: Numbers,
    window: Numbers,
    kv_bytes: Numbers,
) -> Any:
    """`prefill_attention_s` for keys and values of different widths.

    Seconds, numbers or arrays that broadcast. Source: Dao 2023, section 4.1, a FLOP count of ``2·(key_dim +
    value_dim)`` a pair.
    """
    batch, tokens, heads, kv_heads = (np.asarray(x, dtype=float) for x in (batch, tokens, heads, kv_heads))
    key_dim, value_dim = np.asarray(key_dim, dtype=float), np.asarray(value_dim, dtype=float)
    blocks = np.ceil(tokens / _QUERY_ROWS)
    rows = np.minimum(np.ceil(tokens / _GROUP_ROWS) * _GROUP_ROWS, _QUERY_ROWS)
    # keys are visited in tiles too: the diagonal and both ends of a window cost whole ones
    key_tiles = np.ceil(np.asarray(cached, dtype=float) / _QUERY_ROWS)
    window_tiles = np.where(np.asarray(window) > 0, np.ceil(np.asarray(window, dtype=float) / _QUERY_ROWS) + 1, 0.0)
    tile_flops = 2 * (key_dim + value_dim) * rows * np.minimum(_QUERY_ROWS, rows)
    mean_block = tile_flops * causal_pairs(blocks, key_tiles, window_tiles) / blocks
    longest = tile_flops * seen(blocks + key_tiles, window_tiles)
    rate = c["compute_share"] * c.flops_per_s / max(c.multiprocessors, 1.0)
    rounds = waves(batch * heads * blocks, c.multiprocessors, c["wave_tail"])
    floor = longest if c.multiprocessors > 0 else 0.0
    compute_s = np.maximum(rounds * mean_block, floor) * (1 + c["half_tokens"] / tokens) / rate
    moved = heads * (key_dim + value_dim) + kv_heads * (key_dim + value_dim)
    n_bytes = batch * tokens * (moved * _ACTIVATION_BYTES + kv_heads * (key_dim + value_dim) * kv_bytes)
    n_bytes = n_bytes + batch * np.asarray(cached, dtype=float) * kv_heads * (key_dim + value_dim) * kv_bytes
    memory_s = n_bytes / (c.bytes_per_s * _cache_share(c, n_bytes))
    fixed_s = (c["fixed_us"] + c["log_us"] * np.log2(1 + tokens / _QUERY_ROWS)) * MICRO
    return fixed_s + rounded_max(compute_s, memory_s, c["overlap_power"])
