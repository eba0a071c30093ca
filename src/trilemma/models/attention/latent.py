"""Multi-head latent attention (MLA) and the sparse indexer beside it: DeepSeek-V2, -V3, -V3.2 and their kin."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.attention.indexer import IndexedAttention
from trilemma.models.attention.kind import AttentionKind, KernelShape, Paging, causal_pairs
from trilemma.models.cache_law import CacheLaw, no_bytes, row_bytes, whole
from trilemma.quantities import Numbers, ceil_div

if TYPE_CHECKING:
    from trilemma.models.blocks.builder import Builder
    from trilemma.models.blocks.decoder import LayerPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention(IndexedAttention):
    """MLA (DeepSeek-V2, 2024): one latent of ``kv_rank`` plus a rope key of ``rope_dim`` per token, shared by all heads."""

    pages: ClassVar[Paging] = "rows"
    is_latent: ClassVar[bool] = True
    is_compressed: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    saved_measured: ClassVar[bool] = True
    #: Those of softmax attention, its low-rank pairs and absorbed products.
    serving_kernels: ClassVar[int] = 9
    training_kernels: ClassVar[int] = 16

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    @property
    def label(self) -> str:
        return "mla"

    @property
    def cache_key(self) -> tuple[object, ...]:
        return ("latent", self.kv_rank, self.rope_dim, self.index_dim)

    @property
    def cache_formula(self) -> str:
        return self._indexed_formula(f"({self.kv_rank} + {self.rope_dim}) x bytes on every rank")

    @property
    def rotary_width(self) -> int:
        return self.rope_dim

    @property
    def value_width(self) -> int:
        return self.v_dim

    @property
    def latent_width(self) -> int:
        return self.kv_rank + self.rope_dim

    @property
    def partial_widths(self) -> tuple[int, int]:
        return self.latent_width, self.kv_rank

    @property
    def unpacked_width(self) -> int:
        return self.nope_dim + self.v_dim

    def add_tensors(self, add: Builder, hidden: int, layer: LayerPlan) -> None:
        """MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1) and the sparse indexer of DeepSeek-V3.2.

        The down-projections to latents and the indexer are whole on every rank (vllm/model_executor/models/deepseek_v2.py:
        ReplicatedLinear, MergedColumnParallelLinear with disable_tp); the up-projections are cut by heads.
        """
        name, heads, bias = "self_attn", self.heads, layer.latent_bias
        queries = heads * (self.nope_dim + self.rope_dim)
        if self.q_rank is None:
            add.linear(f"{name}.q_proj", "mla.q", queries, hidden, shard="column", units=heads)
        else:
            add.linear(f"{name}.q_a_proj", "mla.q_a", self.q_rank, hidden, bias=bias)
            add.norm(f"{name}.q_a_layernorm", self.q_rank)
            add.linear(f"{name}.q_b_proj", "mla.q_b", queries, self.q_rank, shard="column", units=heads)
        add.linear(f"{name}.kv_a_proj_with_mqa", "mla.kv_a", self.latent_width, hidden, bias=bias)
        add.norm(f"{name}.kv_a_layernorm", self.kv_rank)
        unpacked = heads * self.unpacked_width
        add.linear(f"{name}.kv_b_proj", "mla.kv_b", unpacked, self.kv_rank, shard="column", units=heads)
        add.linear(f"{name}.o_proj", "mla.o", hidden, heads * self.v_dim, shard="row", units=heads, bias=bias)
        if self.index_heads and self.index_dim:
            q_width = self.q_rank or hidden
            add.linear(f"{name}.indexer.wq_b", "indexer.q", self.index_heads * self.index_dim, q_width)
            add.linear(f"{name}.indexer.wk", "indexer.k", self.index_dim, hidden)
            add.norm(f"{name}.indexer.k_norm", self.index_dim, bias=True)
            add.linear(f"{name}.indexer.weights_proj", "indexer.weights", self.index_heads, hidden)

    def cache_laws(
        self, *, tp: Numbers, kv_format: Format, indexer_format: Format | None = None, speculative_tokens: int = 0
    ) -> tuple[CacheLaw, ...]:
        """``(kv_rank + rope_dim) · bytes``, a whole copy on every rank (DeepSeek-V2, arXiv 2405.04434, section 2.1).

        With the sparse indexer an FP8 cache keeps the rope key in 16 bits and an FP32 scale per 128 elements of the
        latent: 512 + 4·4 + 64·2 = 656 bytes (vLLM's fp8_ds_mla); the indexer's own key takes 128 bytes and one FP32 scale.
        """
        del speculative_tokens
        if self.index_dim and kv_format.bits == 8:
            latent: float = self.kv_rank + 4 * ceil(self.kv_rank / 128) + 2 * self.rope_dim
        else:
            latent = row_bytes(kv_format, self.latent_width)
        law = CacheLaw(kind="latent", bytes_per_token=whole(latent) + no_bytes(tp), shard="tokens")
        return (law, *self._indexer_laws(tp=tp, indexer_format=indexer_format))

    def _entries_read(self, law: CacheLaw, context: Any) -> Any:
        """Sparse attention scores every index key and reads what it chose."""
        entries = AttentionKind._entries_read(self, law, context)
        return self.chosen(entries) if law.kind == "latent" else entries

    def decode_flops(self, context: Any, *, tp: Numbers, dcp: Numbers) -> Any:
        """Absorbed: scores and values are taken in the latent space, ``2·heads·(2·kv_rank + rope_dim)`` for each cached
        token (DeepSeek-V2, 2024, section 2.1.2); ranks that share tokens out do so for one another's heads."""
        del dcp
        width = 2.0 * ceil_div(self.heads, tp) * (2 * self.kv_rank + self.rope_dim)
        return width * self.chosen(context) + self.scoring_flops(context)

    def prefill_flops(self, tokens: Any, cached: Any, *, tp: Numbers) -> Any:
        """Unabsorbed, with keys of ``nope + rope`` and values of ``v_dim``."""
        width = self.nope_dim + self.rope_dim + self.v_dim
        attended = 2.0 * ceil_div(self.heads, tp) * width * causal_pairs(tokens, cached, self.index_topk)
        return attended + self.scoring_flops(causal_pairs(tokens, cached, None))

    def unmasked_flops(self, seq: int) -> float:
        return 2.0 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim) * seq

    def decode_kernel(self, *, batch: float, context: float, tp: int) -> KernelShape:
        seen = min(context, self.index_topk or np.inf)
        shapes = {"batch": batch, "context": seen, "heads": float(ceil_div(self.heads, tp))}
        return KernelShape(kernel="mla_decode", what="latent attention", shapes=shapes)

    @property
    def pointwise_width(self) -> float:
        return 2.0 * self.heads * (2 * (self.nope_dim + self.rope_dim) + self.v_dim)

    @property
    def exchanged_width(self) -> float:
        return float(self.heads * (self.nope_dim + self.rope_dim + self.v_dim))
