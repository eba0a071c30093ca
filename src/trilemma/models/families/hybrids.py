"""Kimi Linear, Jamba and Falcon-H1: recurrent layers beside attention, each in its own order."""

from __future__ import annotations

from dataclasses import replace

from trilemma.errors import InputError
from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, Mixer, RecurrentState
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import deepseek, granite, shapes
from trilemma.models.fields import Fields


def kimi_linear(fields: Fields) -> Decoder:
    """Kimi Linear (vllm/model_executor/models/kimi_linear.py): Kimi delta attention with MLA between; layers count from 1."""
    layers = fields.layers()
    part = fields.section("linear_attn_config")
    if part is None:
        raise InputError(f"{fields.label('linear_attn_config')} is missing; give kda_layers and full_attn_layers")
    full = set(part.counts("full_attn_layers", low=1, high=4096) or ())
    part.ignore("kda_layers")
    heads = part.count("num_heads", high=shapes.MOST_HEADS)
    dim = part.count("head_dim", high=2**14)
    linear = RecurrentState(
        kind="kimi_delta",
        heads=heads,
        key_heads=heads,
        state_rows=dim,
        state_columns=dim,
        conv_channels=3 * heads * dim,
        conv_width=part.count("short_conv_kernel_size", default=4, high=64, quiet=True),
        state_format="fp32",
        conv_format=fields.dtype,
    )
    attention = deepseek.latent(fields)
    fields.ignore(
        "mla_use_nope", "moe_renormalize", "moe_router_activation_func", "num_expert_group", "use_grouped_topk"
    )
    fields.ignore("rope_theta", "num_nextn_predict_layers")
    ffns = deepseek.order(fields, layers, deepseek.experts(fields))
    style = FfnStyle(moe_name="block_sparse_moe", expert_names=("w1", "w3", "w2"), score_bias=True)
    plans = [
        LayerPlan(mixer=attention if index + 1 in full else linear, ffn=ffn, ffn_style=style)
        for index, ffn in enumerate(ffns)
    ]
    return shapes.llama_like(fields, plans)


def jamba(fields: Fields) -> Decoder:
    """Jamba (transformers: models/jamba): Mamba-1, attention every eighth layer, a mixture on every other."""
    layers, hidden = fields.layers(), shapes.hidden_size(fields)
    inner = hidden * fields.count("mamba_expand", default=2, high=64, quiet=True)
    rank = fields.raw("mamba_dt_rank")
    state = RecurrentState(
        kind="mamba1",
        heads=inner,
        key_heads=-(-hidden // 16) if rank in (None, "auto") else fields.count("mamba_dt_rank", high=shapes.WIDEST),
        state_rows=1,
        state_columns=fields.count("mamba_d_state", default=16, high=2**14),
        conv_channels=inner,
        conv_width=fields.count("mamba_d_conv", default=4, high=64),
        state_format=shapes.state_format(fields),
        conv_format=fields.dtype,
    )
    period = fields.count("attn_layer_period", default=8, high=4096, quiet=True)
    offset = fields.count("attn_layer_offset", default=4, low=0, high=4096, quiet=True)
    each = fields.count("expert_layer_period", default=2, high=4096, quiet=True)
    start = fields.count("expert_layer_offset", default=1, low=0, high=4096, quiet=True)
    count = fields.count("num_experts", default=16, high=shapes.MOST_EXPERTS)
    dense: Ffn = shapes.dense(fields)
    mixture: Ffn = ExpertFfn(
        experts=count,
        top_k=shapes.experts_per_token(fields, default=2),
        intermediate=shapes.intermediate(fields),
    )
    full: Mixer = shapes.softmax(fields, kv_default=8)
    plans = [
        LayerPlan(
            mixer=full if index % period == offset else state,
            ffn=mixture if count > 1 and index % each == start else dense,
            ffn_style=FfnStyle(name="feed_forward", moe_name="feed_forward", router="router"),
            ffn_norms=("pre_ff_layernorm",),
            recurrent_name="mamba",
            recurrent_bias=fields.flag("mamba_proj_bias", default=False),
            conv_bias=fields.flag("mamba_conv_bias", default=True),
        )
        for index in range(layers)
    ]
    return shapes.llama_like(fields, plans, final_norm="final_layernorm")


def falcon_h1(fields: Fields) -> Decoder:
    """Falcon-H1 (transformers: models/falcon_h1): Mamba-2 and attention side by side in every layer.

    Each layer is told as two halves, as Nemotron-H has them: Mamba-2 alone, then attention with the feed-forward.
    """
    layers = fields.layers()
    state = granite.mamba2_state(fields)
    full = shapes.softmax(fields)
    bias = fields.flag("attention_bias", default=False)
    fields.ignore(
        "mamba_use_mlp", "mamba_norm_before_gate", "mlp_expansion_factor", "projectors_bias", "attention_bias"
    )
    first = LayerPlan(
        mixer=state,
        ffn=None,
        recurrent_name="mamba",
        recurrent_bias=fields.flag("mamba_proj_bias", default=False),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        gated_norm=fields.flag("mamba_rms_norm", default=False),
    )
    second = LayerPlan(
        mixer=full,
        ffn=DenseFfn(intermediate=shapes.intermediate(fields)),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
        ffn_style=FfnStyle(name="feed_forward", bias=fields.flag("mlp_bias", default=False)),
        mixer_norms=(),
        ffn_norms=("pre_ff_layernorm",),
    )
    decoder = shapes.llama_like(fields, [first, second] * layers, final_norm="final_layernorm")
    return replace(decoder, notes=("each layer is told as two: Mamba-2, then attention with the feed-forward",))
