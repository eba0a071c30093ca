"""OpenAI gpt-oss: windows on every other layer, attention sinks, biases everywhere."""

from __future__ import annotations

from trilemma.models.architecture import ExpertFfn
from trilemma.models.attention import AttentionStyle
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def gpt_oss(fields: Fields) -> Decoder:
    """gpt-oss (transformers: models/gpt_oss)."""
    layers = fields.layers()
    full = shapes.softmax(fields, kv_default=8, head_default=64, sinks=True)
    size = fields.count("sliding_window", default=128, high=2**40)
    sliding = shapes.softmax(fields, kv_default=8, head_default=64, sinks=True, window=size)
    fields.ignore("experts_per_token")
    experts = ExpertFfn(
        experts=fields.count("num_local_experts", "num_experts", default=128, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, "num_experts_per_tok", "experts_per_token", default=4),
        intermediate=shapes.intermediate(fields),
    )
    default = ["sliding_attention" if index % 2 == 0 else "full_attention" for index in range(layers)]
    bias = fields.flag("attention_bias", default=True)
    plans = [
        LayerPlan(
            mixer=mixer,
            ffn=experts,
            attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
            ffn_style=FfnStyle(router="router", router_bias=True, expert_bias=True),
        )
        for mixer in shapes.windowed(fields, layers, full=full, sliding=sliding, default=default)
    ]
    return shapes.llama_like(fields, plans)
