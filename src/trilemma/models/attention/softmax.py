"""Softmax attention with keys and values per token: MHA, GQA, MQA, in full, in windows or in chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from trilemma.formats.formats import Format
from trilemma.models.attention.kind import AttentionKind, KernelShape, LookBack, Paging, causal_pairs
from trilemma.models.cache_law import CacheLaw, no_bytes, row_bytes, whole
from trilemma.quantities import Numbers, ceil_div

if TYPE_CHECKING:
    from trilemma.models.blocks.builder import Builder
    from trilemma.models.blocks.decoder import LayerPlan

QkNorm: TypeAlias = Literal["head", "heads"]
OutputGate: TypeAlias = Literal["elementwise", "headwise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionStyle:
    """What softmax attention of a family has beside its four matrices.

    ``qk_norm``: "head" normalises each head with one weight of ``head_dim``; "heads" with a weight for every head;
    ``gate``: "elementwise" doubles the query projection (Qwen3-Next), "headwise" adds one logit a head.
    ``k_is_v``: values are the keys, no value matrix exists (Gemma 4 global layers).
    """

    qkv_bias: bool = False
    k_bias: bool | None = None
    o_bias: bool = False
    qk_norm: QkNorm | None = None
    qk_norm_bias: bool = False
    gate: OutputGate | None = None
    k_is_v: bool = False
    no_kv: bool = False
    name: str = "self_attn"
    o_name: str = "o_proj"


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxAttention(AttentionKind):
    """Attention that keeps K and V per token: MHA, GQA, MQA; ``window`` or ``chunk`` bound what it looks back on."""

    pages: ClassVar[Paging] = "rows"
    is_latent: ClassVar[bool] = False
    is_compressed: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    saved_measured: ClassVar[bool] = True
    #: Norm, qkv, rope with cache write, output.
    serving_kernels: ClassVar[int] = 4
    training_kernels: ClassVar[int] = 9

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    chunk: int | None = None
    #: This layer reads the cache of another layer and keeps none of its own (cross-layer sharing).
    shares_cache: bool = False
    #: Learned per-head sink logits.
    sinks: bool = False
    #: Cross-attention: tokens of an encoder (not of the text) whose K and V a sequence keeps; 0 for self-attention.
    cross_tokens: int = 0

    @property
    def label(self) -> str:
        return "sliding" if self.window or self.chunk else "full"

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def cache_key(self) -> tuple[object, ...]:
        return ("softmax", self.kv_heads, self.k_dim, self.v_dim)

    @property
    def cache_formula(self) -> str:
        if self.shares_cache:
            return "none of its own: reads the cache of an earlier layer"
        text = f"ceil({self.kv_heads} KV heads / tp) x ({self.k_dim} + {self.v_dim}) x bytes"
        return f"{self.cross_tokens} image tokens x {text}" if self.cross_tokens else text

    @property
    def rotary_width(self) -> int:
        return self.k_dim

    @property
    def value_width(self) -> int:
        return self.v_dim

    @property
    def look_back(self) -> LookBack | None:
        if self.window:
            return "window", self.window
        return ("chunk", self.chunk) if self.chunk else None

    @property
    def partial_widths(self) -> tuple[int, int]:
        return self.k_dim, self.v_dim

    @property
    def borrows_cache(self) -> bool:
        return self.shares_cache

    @property
    def cache_heads(self) -> int:
        return self.kv_heads

    @property
    def key_share(self) -> float | None:
        width = self.k_dim + self.v_dim
        return self.k_dim / width if width else None

    def add_tensors(self, add: Builder, hidden: int, layer: LayerPlan) -> None:
        """q, k, v, o and what the style adds; ``kv`` matrices are absent where a layer borrows another's cache."""
        style, heads, kv_heads = layer.attention, self.heads, self.kv_heads
        name, bias = style.name, style.qkv_bias
        gated = 2 if style.gate == "elementwise" else 1
        k_bias = bias if style.k_bias is None else style.k_bias
        queries = heads * self.k_dim * gated
        add.linear(f"{name}.q_proj", "attention.q", queries, hidden, shard="column", units=heads, bias=bias)
        if not style.no_kv:
            keys, values = kv_heads * self.k_dim, kv_heads * self.v_dim
            add.linear(f"{name}.k_proj", "attention.k", keys, hidden, shard="column", units=kv_heads, bias=k_bias)
            if not style.k_is_v:
                add.linear(f"{name}.v_proj", "attention.v", values, hidden, shard="column", units=kv_heads, bias=bias)
        inner = heads * self.v_dim
        add.linear(f"{name}.{style.o_name}", "attention.o", hidden, inner, shard="row", units=heads, bias=style.o_bias)
        if style.gate == "headwise":
            add.linear(f"{name}.g_proj", "attention.gate", heads, hidden, shard="column", units=heads)
        self._add_norms(add, style)
        if self.sinks:
            add.plain(f"{name}.sinks", "attention.sinks", heads, shard="column", units=heads)

    def _add_norms(self, add: Builder, style: AttentionStyle) -> None:
        if style.qk_norm is None:
            return
        name = style.name
        if style.qk_norm == "head":
            add.norm(f"{name}.q_norm", self.k_dim, bias=style.qk_norm_bias)
            if not style.no_kv:
                add.norm(f"{name}.k_norm", self.k_dim, bias=style.qk_norm_bias)
            return
        add.norm(f"{name}.q_norm", self.heads * self.k_dim, shard="column", units=self.heads)
        if not style.no_kv:
            add.norm(f"{name}.k_norm", self.kv_heads * self.k_dim, shard="column", units=self.kv_heads)

    def cache_laws(
        self, *, tp: Numbers, kv_format: Format, indexer_format: Format | None = None, speculative_tokens: int = 0
    ) -> tuple[CacheLaw, ...]:
        """What one layer of grouped-query attention keeps per token on one tensor-parallel rank.

        ``ceil(kv_heads / tp) · (k_dim + v_dim) · bytes`` (Ainslie et al. 2023; MHA is kv_heads = heads). A head is never
        split, so ranks beyond the KV heads hold copies: tp = 16 costs what tp = 8 costs for eight KV heads, and decode
        context parallelism may divide the tokens among the copies.
        """
        del indexer_format, speculative_tokens
        if self.shares_cache:
            return (CacheLaw(kind="shared", bytes_per_token=no_bytes(tp)),)
        per_head = row_bytes(kv_format, self.k_dim) + row_bytes(kv_format, self.v_dim)
        rate: Any = ceil_div(self.kv_heads, tp) * whole(per_head)
        if self.cross_tokens:
            return (CacheLaw(kind="cross", fixed_bytes=rate * self.cross_tokens, bytes_per_token=no_bytes(tp)),)
        kind = "sliding" if self.window else "chunked" if self.chunk else "full"
        return (CacheLaw(kind=kind, bytes_per_token=rate, window=self.window or self.chunk),)

    def decode_bytes(self, context: Any, *, tp: Numbers, kv_format: Format, dcp: Numbers) -> Any:
        """KV heads are read whole; a layer that keeps no cache of its own reads another's."""
        reader = replace(self, shares_cache=False) if self.shares_cache else self
        return AttentionKind.decode_bytes(reader, context, tp=tp, kv_format=kv_format, dcp=dcp)

    def _entries_read(self, law: CacheLaw, context: Any) -> Any:
        del law
        return self._looked_at(context)

    def _looked_at(self, context: Any) -> Any:
        """Tokens that the newest attends to: all, at most the window, or on average half a chunk once chunks are full."""
        if self.cross_tokens:
            return 0.0 * context + self.cross_tokens
        if self.window is not None:
            return np.minimum(context, self.window)
        if self.chunk is not None:
            return np.where(context <= self.chunk, context, self.chunk / 2)
        return context

    def decode_flops(self, context: Any, *, tp: Numbers, dcp: Numbers) -> Any:
        """``2·heads·(k_dim + v_dim)`` for each token looked at; ranks that share tokens out do so for one another's heads."""
        del dcp
        return 2.0 * ceil_div(self.heads, tp) * (self.k_dim + self.v_dim) * self._looked_at(context)

    def prefill_flops(self, tokens: Any, cached: Any, *, tp: Numbers) -> Any:
        """``2·heads·(k_dim + v_dim)`` a pair (Dao 2023, section 4.1, halved for the causal mask)."""
        pairs = tokens * self.cross_tokens if self.cross_tokens else causal_pairs(tokens, cached, self.window)
        if self.chunk is not None:
            pairs = np.minimum(pairs, tokens * self.chunk / 2)
        return 2.0 * ceil_div(self.heads, tp) * (self.k_dim + self.v_dim) * pairs

    def prefill_scores(self, tokens: Any, cached: Any, rows: Any, *, tp: Numbers) -> Any:
        pairs = self.prefill_flops(tokens, cached, tp=tp) / (2.0 * (self.k_dim + self.v_dim))
        return pairs + ceil_div(self.heads, tp) * tokens * np.minimum(rows, tokens) / 2

    def unmasked_flops(self, seq: int) -> float:
        return 2.0 * self.heads * (self.k_dim + self.v_dim) * seq

    def decode_kernel(self, *, batch: float, context: float, tp: int) -> KernelShape:
        window = self.window or self.chunk or 0
        shapes = {
            "batch": batch, "context": context, "heads": float(ceil_div(self.heads, tp)),
            "kv_heads": float(ceil_div(self.kv_heads, tp)), "head_dim": float(self.k_dim), "window": float(window),
        }  # fmt: skip
        what = f"attention, window {window}" if window else "attention"
        return KernelShape(
            kernel="decode_attention", what=what, shapes=shapes, head_dim=self.k_dim, windowed=window > 0
        )

    @property
    def pointwise_width(self) -> float:
        return 2.0 * (self.heads + self.kv_heads) * self.k_dim

    @property
    def exchanged_width(self) -> float:
        return float(self.kv_heads * (self.k_dim + self.v_dim))
