"""Multi-head latent attention: decode in the latent space, prefill with keys and values unpacked into heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.quantities import Numbers
from trilemma.timing.kernels.attention import cache_reading_s, masked_product_s
from trilemma.timing.kernels.fitted import KernelCoefficients

_ACTIVATION_BYTES = 2.0
_GROUP_ROWS = 16


def mla_decode_s(
    c: KernelCoefficients,
    batch: Numbers,
    context: Numbers,
    heads: Numbers,
    *,
    kv_rank: Numbers = 512,
    rope_dim: Numbers = 64,
    kv_bytes: Numbers = 2.0,
) -> Any:
    """Seconds of one layer's absorbed decode: all heads of a sequence share one latent of ``kv_rank + rope_dim``.

    ``2·heads·(2·kv_rank + rope_dim)`` FLOPs a cached token (DeepSeek-V2, 2024, section 2.1.2), heads padded to 16 rows;
    the latent is read once. Parameters as in decode attention.

    Numbers or arrays that broadcast.
    """
    batch, context, heads = (np.asarray(x, dtype=float) for x in (batch, context, heads))
    width = np.asarray(kv_rank, dtype=float) + rope_dim
    padded = np.ceil(heads / _GROUP_ROWS) * _GROUP_ROWS
    n_bytes = batch * (context * width * kv_bytes + heads * (width + kv_rank) * _ACTIVATION_BYTES)
    flops = 2 * batch * padded * context * (width + kv_rank)
    return cache_reading_s(c, n_bytes=n_bytes, flops=flops, blocks=batch, length=context)


def mla_prefill_s(
    c: KernelCoefficients,
    batch: Numbers,
    tokens: Numbers,
    heads: Numbers,
    *,
    cached: Numbers = 0,
    nope_dim: Numbers = 128,
    rope_dim: Numbers = 64,
    v_dim: Numbers = 128,
    kv_bytes: Numbers = 2.0,
) -> Any:
    """Seconds of one layer's unabsorbed prefill: keys of ``nope_dim + rope_dim``, values of ``v_dim``, one KV head a head.

    Seconds, numbers or arrays that broadcast; the pairs of a masked product (Dao 2023, section 4.1; DeepSeek-V2, 2024,
    section 2.1).
    """
    key_dim = np.asarray(nope_dim, dtype=float) + rope_dim
    return masked_product_s(c, batch, tokens, heads, heads, key_dim, v_dim, cached=cached, window=0, kv_bytes=kv_bytes)
