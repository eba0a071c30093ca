"""Attention of encoders: every token attends to the whole text in one pass, and nothing is kept for a token to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.attention.softmax import SoftmaxAttention
from trilemma.models.cache_law import CacheLaw, no_bytes
from trilemma.quantities import Numbers, ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodingAttention(SoftmaxAttention):
    """Softmax attention without a causal mask (BERT, Devlin et al. 2018): no cache, and twice the pairs of a decoder."""

    @property
    def generates_nothing(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return "encoder"

    @property
    def cache_key(self) -> tuple[object, ...]:
        return ("encoder",)

    @property
    def cache_formula(self) -> str:
        return "none: a text is read whole in one pass"

    @property
    def key_share(self) -> float | None:
        return None

    def cache_laws(
        self, *, tp: Numbers, kv_format: Format, indexer_format: Format | None = None, speculative_tokens: int = 0
    ) -> tuple[CacheLaw, ...]:
        del kv_format, indexer_format, speculative_tokens
        return (CacheLaw(kind="encoder", bytes_per_token=no_bytes(tp)),)

    def prefill_flops(self, tokens: Any, cached: Any, *, tp: Numbers) -> Any:
        """``2·heads·(k_dim + v_dim)`` for every pair of tokens, those of a ``window`` around each where there is one: no mask
        halves them, and no prefix is cached."""
        del cached
        seen = tokens if self.window is None else np.minimum(tokens, self.window)
        return 2.0 * ceil_div(self.heads, tp) * (self.k_dim + self.v_dim) * tokens * seen
