"""Tensors of attention layers, with how vLLM's parallel linear layers cut them.

Sources of shapes: the modelling files of transformers; of cuts: vllm/model_executor/layers/linear.py (QKVParallelLinear by
whole heads, KV heads replicated beyond their number, RowParallelLinear for the output) and the model files named below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trilemma.models.architecture import LatentAttention, SoftmaxAttention
from trilemma.models.blocks.builder import Builder

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
    v_norm: bool = False
    gate: OutputGate | None = None
    k_is_v: bool = False
    no_kv: bool = False
    name: str = "self_attn"
    o_name: str = "o_proj"


def softmax_attention(add: Builder, hidden: int, mixer: SoftmaxAttention, style: AttentionStyle) -> None:
    """q, k, v, o and what ``style`` adds; ``kv`` matrices are absent where a layer borrows another's cache."""
    name, heads, kv_heads = style.name, mixer.heads, mixer.kv_heads
    q_width = heads * mixer.k_dim
    gated = 2 if style.gate == "elementwise" else 1
    k_bias = style.qkv_bias if style.k_bias is None else style.k_bias
    add.linear(
        f"{name}.q_proj", "attention.q", q_width * gated, hidden, shard="column", units=heads, bias=style.qkv_bias
    )
    if not style.no_kv:
        k_out, v_out = kv_heads * mixer.k_dim, kv_heads * mixer.v_dim
        add.linear(f"{name}.k_proj", "attention.k", k_out, hidden, shard="column", units=kv_heads, bias=k_bias)
        if not style.k_is_v:
            add.linear(
                f"{name}.v_proj", "attention.v", v_out, hidden, shard="column", units=kv_heads, bias=style.qkv_bias
            )
    add.linear(
        f"{name}.{style.o_name}",
        "attention.o",
        hidden,
        heads * mixer.v_dim,
        shard="row",
        units=heads,
        bias=style.o_bias,
    )
    if style.gate == "headwise":
        add.linear(f"{name}.g_proj", "attention.gate", heads, hidden, shard="column", units=heads)
    _qk_norms(add, mixer, style)
    if mixer.sinks:
        add.plain(f"{name}.sinks", "attention.sinks", heads, shard="column", units=heads)


def _qk_norms(add: Builder, mixer: SoftmaxAttention, style: AttentionStyle) -> None:
    if style.qk_norm is None:
        return
    name = style.name
    if style.qk_norm == "head":
        add.norm(f"{name}.q_norm", mixer.k_dim, bias=style.qk_norm_bias)
        if not style.no_kv:
            add.norm(f"{name}.k_norm", mixer.k_dim, bias=style.qk_norm_bias)
        return
    add.norm(f"{name}.q_norm", mixer.heads * mixer.k_dim, shard="column", units=mixer.heads)
    if not style.no_kv:
        add.norm(f"{name}.k_norm", mixer.kv_heads * mixer.k_dim, shard="column", units=mixer.kv_heads)


def latent_attention(add: Builder, hidden: int, mixer: LatentAttention, *, bias: bool = False) -> None:
    """MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1) and the sparse indexer of DeepSeek-V3.2.

    The down-projections to latents and the indexer are whole on every rank (vllm/model_executor/models/deepseek_v2.py:
    ReplicatedLinear, MergedColumnParallelLinear with disable_tp); the up-projections are cut by heads.
    """
    name, heads = "self_attn", mixer.heads
    qk_dim = mixer.nope_dim + mixer.rope_dim
    if mixer.q_rank is None:
        add.linear(f"{name}.q_proj", "mla.q", heads * qk_dim, hidden, shard="column", units=heads)
    else:
        add.linear(f"{name}.q_a_proj", "mla.q_a", mixer.q_rank, hidden, bias=bias)
        add.norm(f"{name}.q_a_layernorm", mixer.q_rank)
        add.linear(f"{name}.q_b_proj", "mla.q_b", heads * qk_dim, mixer.q_rank, shard="column", units=heads)
    add.linear(f"{name}.kv_a_proj_with_mqa", "mla.kv_a", mixer.kv_rank + mixer.rope_dim, hidden, bias=bias)
    add.norm(f"{name}.kv_a_layernorm", mixer.kv_rank)
    kv_b = heads * (mixer.nope_dim + mixer.v_dim)
    add.linear(f"{name}.kv_b_proj", "mla.kv_b", kv_b, mixer.kv_rank, shard="column", units=heads)
    add.linear(f"{name}.o_proj", "mla.o", hidden, heads * mixer.v_dim, shard="row", units=heads, bias=bias)
    if mixer.index_heads and mixer.index_dim:
        q_width = mixer.q_rank or hidden
        add.linear(f"{name}.indexer.wq_b", "indexer.q", mixer.index_heads * mixer.index_dim, q_width)
        add.linear(f"{name}.indexer.wk", "indexer.k", mixer.index_dim, hidden)
        add.norm(f"{name}.indexer.k_norm", mixer.index_dim, bias=True)
        add.linear(f"{name}.indexer.weights_proj", "indexer.weights", mixer.index_heads, hidden)
