"""Microsoft Phi: Phi-1 to 2 (parallel halves, biases), Phi-3 and 4 (Llama's shape), Phi-3.5-MoE."""

from __future__ import annotations

from trilemma.models.architecture import ExpertFfn
from trilemma.models.attention import AttentionStyle
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def phi(fields: Fields) -> Decoder:
    """Phi-1, 1.5 and 2 (transformers: models/phi): one layer norm for both halves, a bias on every matrix."""
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=shapes.dense(fields, gated=False),
        attention=AttentionStyle(qkv_bias=True, o_bias=True, o_name="dense"),
        ffn_style=FfnStyle(up="fc1", down="fc2", bias=True),
        ffn_norms=(),
    )
    fields.ignore("qk_layernorm")
    return shapes.llama_like(
        fields, [plan] * fields.layers(), norm_bias=True, head_bias=True, final_norm="final_layernorm"
    )


def phi3(fields: Fields) -> Decoder:
    """Phi-3 and Phi-4 (transformers: models/phi3); q, k, v and gate, up are stored fused, which changes no size."""
    fields.ignore(
        "attention_bias", "lm_head_bias", "mlp_bias", "full_attn_mod", "interpolate_factor", "sliding_window_pattern"
    )
    plan = LayerPlan(mixer=shapes.softmax(fields, window=shapes.window(fields)), ffn=shapes.dense(fields))
    return shapes.llama_like(fields, [plan] * fields.layers())


def phimoe(fields: Fields) -> Decoder:
    """Phi-3.5-MoE (transformers: models/phimoe): layer norms with bias, biased attention and output matrix."""
    bias = fields.flag("attention_bias", default=False)
    fields.ignore("input_jitter_noise")
    experts = ExpertFfn(
        experts=fields.count("num_local_experts", default=16, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=2),
        intermediate=shapes.intermediate(fields),
    )
    plan = LayerPlan(
        mixer=shapes.softmax(fields, kv_default=8, window=shapes.window(fields)),
        ffn=experts,
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
        ffn_style=FfnStyle(moe_name="block_sparse_moe", expert_names=("w1", "w3", "w2")),
    )
    head_bias = fields.flag("lm_head_bias", default=False)
    return shapes.llama_like(fields, [plan] * fields.layers(), norm_bias=True, head_bias=head_bias)
