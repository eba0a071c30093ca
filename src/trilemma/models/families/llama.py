"""Llama, Mistral, Mixtral: grouped-query attention, RMS norms, SwiGLU."""

from __future__ import annotations

from trilemma.models.architecture import ExpertFfn
from trilemma.models.blocks.attention import AttentionStyle
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def llama(fields: Fields) -> Decoder:
    """Llama 1 to 3, Mistral and what copies them (transformers: models/llama)."""
    bias = fields.flag("attention_bias", "bias", "qkv_bias", default=False)
    window = shapes.window(fields, gate=None if fields.family in ("mistral", "ministral") else "use_sliding_window")
    plan = LayerPlan(
        mixer=shapes.softmax(fields, window=window),
        ffn=shapes.dense(fields),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
        ffn_style=FfnStyle(bias=fields.flag("mlp_bias", default=False)),
    )
    return Decoder(
        hidden=shapes.hidden_size(fields),
        vocab=shapes.vocabulary(fields),
        layers=shapes.repeat(plan, fields.layers()),
        max_positions=shapes.max_positions(fields),
        tied=shapes.tied(fields),
    )


def mixtral(fields: Fields) -> Decoder:
    """Mixtral: Mistral with a mixture in every layer (transformers: models/mixtral)."""
    experts = ExpertFfn(
        experts=fields.count("num_local_experts", default=8, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=2),
        intermediate=shapes.intermediate(fields),
    )
    plan = LayerPlan(
        mixer=shapes.softmax(fields, kv_default=8, window=shapes.window(fields, gate=None)),
        ffn=experts,
        ffn_style=FfnStyle(moe_name="block_sparse_moe", expert_names=("w1", "w3", "w2")),
    )
    return Decoder(
        hidden=shapes.hidden_size(fields),
        vocab=shapes.vocabulary(fields),
        layers=shapes.repeat(plan, fields.layers()),
        max_positions=shapes.max_positions(fields),
        tied=shapes.tied(fields),
    )
