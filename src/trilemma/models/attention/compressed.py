"""Compressed attention (DeepSeek-V4): one key-value latent, a pooled copy of it per stride, a window, a grouped output.

Source of tensors and caches: vllm/model_executor/models/deepseek_v4.py with its attention and compressor modules and the
sparse_swa backend; names as in the published checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.attention.indexer import IndexedAttention
from trilemma.models.attention.kind import AttentionKind, Paging, causal_pairs
from trilemma.models.cache_law import CacheLaw, no_bytes, row_bytes, whole
from trilemma.quantities import Numbers, ceil_div

if TYPE_CHECKING:
    from trilemma.models.blocks.builder import Builder
    from trilemma.models.blocks.decoder import LayerPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedStyle:
    """The grouped low-rank output projection: ``o_groups`` groups of heads, each to ``o_rank``."""

    o_groups: int = 1
    o_rank: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedAttention(IndexedAttention):
    """Attention over one stored latent per ``stride`` tokens beside a sliding window of the newest (DeepSeek-V4).

    ``stride`` 0 marks a layer that keeps the window only.
    """

    pages: ClassVar[Paging] = "parts"
    is_latent: ClassVar[bool] = False
    is_compressed: ClassVar[bool] = True
    keeps_state: ClassVar[bool] = False
    saved_measured: ClassVar[bool] = False
    serving_kernels: ClassVar[int] = 9
    training_kernels: ClassVar[int] = 18

    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    stride: int
    window: int

    @property
    def label(self) -> str:
        return "compressed"

    @property
    def cache_key(self) -> tuple[object, ...]:
        return ("compressed", self.head_dim, self.rope_dim, self.stride, self.window, self.index_dim)

    @property
    def cache_formula(self) -> str:
        if self.stride <= 1:
            return f"{self.head_dim} x bytes for the last {self.window} tokens, on every rank"
        text = f"{self.head_dim} x bytes per {self.stride} tokens and for the last {self.window}, on every rank"
        return self._indexed_formula(text)

    @property
    def rotary_width(self) -> int:
        return self.rope_dim

    @property
    def value_width(self) -> int:
        return self.head_dim

    def add_tensors(self, add: Builder, hidden: int, layer: LayerPlan) -> None:
        """Latents, compressors and the indexer are whole on every rank; queries and outputs are cut by heads and groups."""
        style = layer.compressed
        heads, dim, groups = self.heads, self.head_dim, style.o_groups
        add.linear("attn.wq_a", "mla.q_a", self.q_rank, hidden)
        add.norm("attn.q_norm", self.q_rank)
        add.linear("attn.wq_b", "mla.q_b", heads * dim, self.q_rank, shard="column", units=heads)
        add.linear("attn.wkv", "mla.kv_a", dim, hidden)
        add.norm("attn.kv_norm", dim)
        add.linear("attn.wo_a", "mla.o", groups * style.o_rank, heads * dim // groups, shard="column", units=groups)
        add.linear("attn.wo_b", "mla.o", hidden, groups * style.o_rank, shard="row", units=groups)
        add.plain("attn.attn_sink", "attention.sinks", heads, shard="column", units=heads)
        if self.stride > 1:
            _compressor(add, "attn.compressor", hidden, dim, self.stride)
        if self.index_heads and self.index_dim:
            add.linear("attn.indexer.wq_b", "indexer.q", self.index_heads * self.index_dim, self.q_rank)
            add.linear("attn.indexer.weights_proj", "indexer.weights", self.index_heads, hidden)
            _compressor(add, "attn.indexer.compressor", hidden, self.index_dim, self.stride)

    def cache_laws(
        self, *, tp: Numbers, kv_format: Format, indexer_format: Format | None = None, speculative_tokens: int = 0
    ) -> tuple[CacheLaw, ...]:
        """One latent per ``stride`` tokens, a window of the newest, an indexer, and the compressor's state.

        An FP8 entry is 448 + 64·2 + 8 = 584 bytes (UE8M0 scales, one per 64 elements, padded to 8); the FP32 state of a
        compressor is two rows of ``overlap · dim`` for each of the last ``overlap · stride`` tokens. Nothing is cut by
        tensor parallelism.
        """
        del speculative_tokens
        entry, zero = self._entry(kv_format), no_bytes(tp)
        window = CacheLaw(kind="window", bytes_per_token=entry + zero, window=self.window, shard="none")
        if self.stride <= 1:
            return (window,)
        laws = [CacheLaw(kind="compressed", bytes_per_token=entry + zero, stride=self.stride, shard="none")]
        laws += [*self._indexer_laws(tp=tp, indexer_format=indexer_format, stride=self.stride), window]
        for dim in (self.head_dim, self.index_dim):
            if dim:
                folds = overlap(self.stride)
                state = 2 * folds * dim * 4 + zero
                laws.append(
                    CacheLaw(kind="compressor", bytes_per_token=state, window=folds * self.stride, shard="none")
                )
        return tuple(laws)

    def _entry(self, kv_format: Format) -> Any:
        if kv_format.bits == 8:
            latent = self.head_dim - self.rope_dim
            return latent + 2 * self.rope_dim + 8 * ceil(latent / 512)
        return whole(row_bytes(kv_format, self.head_dim))

    def _read(self, law: CacheLaw, context: Any, dcp: Numbers) -> Any:
        """States of compressors are touched once per stride."""
        return 0.0 if law.kind == "compressor" else AttentionKind._read(self, law, context, dcp)

    def _entries_read(self, law: CacheLaw, context: Any) -> Any:
        entries = AttentionKind._entries_read(self, law, context)
        return self.chosen(entries) if law.kind == "compressed" else entries

    def decode_flops(self, context: Any, *, tp: Numbers, dcp: Numbers) -> Any:
        """``4·heads·head_dim`` for each entry of the window and each compressed one that was chosen."""
        del dcp  # every rank reads all entries
        entries = np.minimum(context, self.window)
        if self.stride > 1:
            entries = entries + self.chosen(context / self.stride)
        scored = self.scoring_flops(context) / max(self.stride, 1)
        return 4.0 * ceil_div(self.heads, tp) * self.head_dim * entries + scored

    def prefill_flops(self, tokens: Any, cached: Any, *, tp: Numbers) -> Any:
        heads, pairs = ceil_div(self.heads, tp), causal_pairs(tokens, cached, self.window)
        if self.stride <= 1:
            return 4.0 * heads * self.head_dim * pairs
        everything = causal_pairs(tokens, cached, None)
        most = tokens * (self.index_topk if self.index_topk is not None else np.inf)
        pairs = pairs + np.minimum(everything / self.stride, most)
        scored = self.scoring_flops(everything) / self.stride
        return 4.0 * heads * self.head_dim * pairs + scored

    def unmasked_flops(self, seq: int) -> float:
        tokens, none = np.asarray(seq, dtype=float), np.asarray(0.0)
        return 2.0 * float(self.prefill_flops(tokens, none, tp=1)) / seq

    def decode_kernel(self, *, batch: float, context: float, tp: int) -> None:
        """No table of kernels has compressed attention."""

    @property
    def pointwise_width(self) -> float:
        return 4.0 * self.heads * self.head_dim

    @property
    def exchanged_width(self) -> float:
        return 2.0 * self.head_dim


def overlap(stride: int) -> int:
    """How many windows a pooled entry draws on: strides of 4 overlap with their neighbour, longer ones do not."""
    return 2 if stride == 4 else 1


def _compressor(add: Builder, name: str, hidden: int, dim: int, stride: int) -> None:
    width = overlap(stride) * dim
    add.linear(f"{name}.wkv", "compressor", width, hidden)
    add.linear(f"{name}.wgate", "compressor", width, hidden)
    add.plain(f"{name}.ape", "compressor", stride, width)
    add.norm(f"{name}.norm", dim)
