"""Tensors of DeepSeek-V4's compressed attention: one key-value latent, a pooled copy of it per stride, a grouped output.

Source: vllm/model_executor/models/deepseek_v4.py and its attention module; names as in the published checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.models.architecture import CompressedAttention
from trilemma.models.blocks.builder import Builder


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedStyle:
    """The grouped low-rank output projection: ``o_groups`` groups of heads, each to ``o_rank``."""

    o_groups: int = 1
    o_rank: int = 1


def overlap(stride: int) -> int:
    """How many windows a pooled entry draws on: strides of 4 overlap with their neighbour, longer ones do not."""
    return 2 if stride == 4 else 1


def compressed_attention(add: Builder, hidden: int, mixer: CompressedAttention, style: CompressedStyle) -> None:
    """Latents, compressors and the indexer are whole on every rank; queries and outputs are cut by heads and groups."""
    heads, dim, groups = mixer.heads, mixer.head_dim, style.o_groups
    add.linear("attn.wq_a", "mla.q_a", mixer.q_rank, hidden)
    add.norm("attn.q_norm", mixer.q_rank)
    add.linear("attn.wq_b", "mla.q_b", heads * dim, mixer.q_rank, shard="column", units=heads)
    add.linear("attn.wkv", "mla.kv_a", dim, hidden)
    add.norm("attn.kv_norm", dim)
    add.linear("attn.wo_a", "mla.o", groups * style.o_rank, heads * dim // groups, shard="column", units=groups)
    add.linear("attn.wo_b", "mla.o", hidden, groups * style.o_rank, shard="row", units=groups)
    add.plain("attn.attn_sink", "attention.sinks", heads, shard="column", units=heads)
    if mixer.stride > 1:
        _compressor(add, "attn.compressor", hidden, dim, mixer.stride)
    if mixer.index_heads and mixer.index_dim:
        add.linear("attn.indexer.wq_b", "indexer.q", mixer.index_heads * mixer.index_dim, mixer.q_rank)
        add.linear("attn.indexer.weights_proj", "indexer.weights", mixer.index_heads, hidden)
        _compressor(add, "attn.indexer.compressor", hidden, mixer.index_dim, mixer.stride)


def _compressor(add: Builder, name: str, hidden: int, dim: int, stride: int) -> None:
    width = overlap(stride) * dim
    add.linear(f"{name}.wkv", "compressor", width, hidden)
    add.linear(f"{name}.wgate", "compressor", width, hidden)
    add.plain(f"{name}.ape", "compressor", stride, width)
    add.norm(f"{name}.norm", dim)
