"""Bytes of the final norm, the logits and the loss on the last pipeline stage."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.memory.activations import Shards
from trilemma.quantities import ceil_div, round_up


def final_norm_bytes(hidden: int, shards: Shards, *, written: bool, activation_bytes: float) -> Any:
    """The last norm and the input of the output matrix, scalar or array (plans,).

    Bytes. ``written`` out as operators the norm keeps its input in 32 bits and its output, fused it keeps its input; 4
    bytes a row either way (Korthikanti et al. 2022, section 4.3).
    """
    norm = hidden * (4 + activation_bytes) + 4 if written else hidden * activation_bytes + 4
    tp = np.asarray(shards.tp)
    return np.asarray(shards.tokens) * (norm + hidden * activation_bytes) / (tp if shards.sp else 1)


def logits_bytes(
    vocab: int, hidden: int, shards: Shards, *, loss: str, chunks: int, per_logit: float, kept_per_logit: float,
    vocab_multiple: int = 1, vocab_parallel: bool = True, trains_head: bool = True, per_chunk_logit: float | None = None,
    tile: int | None = None,
) -> Any:  # fmt: skip
    """Bytes at the peak of the loss, scalar or array (plans,).

    ``full``: ``tokens · vocab · per_logit``, what logits, their FP32 copy, log-softmax and its gradient need at once
    (12 in Transformers: 2 + 4 + 4 + 2 and 8 of them in backward);
    ``compiled`` likewise at its own price, ``none`` nothing. ``chunked``: all logits in ``kept_per_logit`` bytes and
    one of ``chunks`` pieces at the full price, or at ``per_chunk_logit``.
    ``fused`` with the output matrix (Liger, Cut Cross-Entropy): pieces of about
    as many logits as there are hidden values, or of ``tile`` tokens, and where the matrix is trained its FP32 gradient.

    Sources: Korthikanti et al. 2022, section 4.3; Hsu et al. 2024 (Liger); Wijmans et al. 2024 (Cut Cross-Entropy).
    """
    if loss == "none":
        return np.zeros(np.shape(shards.tokens))
    tp = np.asarray(shards.tp)
    padding = vocab_multiple * tp if vocab_multiple > 1 else 1
    rows = ceil_div(round_up(vocab, padding), tp) if vocab_parallel else vocab
    tokens = np.asarray(shards.tokens, dtype=float)
    if loss in ("full", "compiled"):
        return tokens * rows * per_logit
    if loss == "chunked":
        price = per_logit if per_chunk_logit is None else per_chunk_logit
        return tokens * rows * (kept_per_logit + (price - kept_per_logit) / chunks)
    piece = np.minimum(tokens, tile or np.ceil(tokens * hidden / np.asarray(rows)))
    return piece * rows * per_logit + (rows * hidden * 4.0 if trains_head else 0.0) * np.ones(np.shape(tokens))
