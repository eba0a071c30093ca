"""The sparse indexer beside latent and compressed attention: a small key per token by which few entries are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.attention.kind import AttentionKind
from trilemma.models.cache_law import CacheLaw, indexer_row, no_bytes
from trilemma.quantities import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedAttention(AttentionKind):
    """Attention to the ``index_topk`` entries that ``index_heads`` heads of ``index_dim`` score highest (DeepSeek-V3.2); to
    all where they are None."""

    is_kind: ClassVar[bool] = False

    index_heads: int | None = None
    index_dim: int | None = None
    index_topk: int | None = None

    @property
    def is_sparse(self) -> bool:
        return bool(self.index_dim)

    def chosen(self, candidates: Any) -> Any:
        """Entries attended to of ``candidates``, numbers or arrays."""
        return candidates if self.index_topk is None else np.minimum(candidates, self.index_topk)

    def scoring_flops(self, keys: Any) -> Any:
        """FLOPs by which the indexer scores ``keys`` cached keys, numbers or arrays: two for each element of every head
        (DeepSeek-V3.2, equation 1)."""
        return 2.0 * (self.index_heads or 0) * (self.index_dim or 0) * keys

    def _indexed_formula(self, text: str) -> str:
        return f"{text} + {self.index_dim} + 4 for the indexer" if self.index_dim else text

    def _indexer_laws(self, *, tp: Numbers, indexer_format: Format | None, stride: int = 1) -> tuple[CacheLaw, ...]:
        """A key for each ``stride`` tokens, whole on every rank."""
        if not self.index_dim:
            return ()
        rate = indexer_row(self.index_dim, indexer_format) + no_bytes(tp)
        return (CacheLaw(kind="indexer", bytes_per_token=rate, stride=stride, shard="none"),)
