"""Xiaomi MiMo: Qwen2 with MTP, and MiMo-V2 with unequal keys and values, windows and sinks."""

from __future__ import annotations

from trilemma.errors import InputError
from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, SoftmaxAttention
from trilemma.models.blocks.decoder import Decoder, LayerPlan, MtpPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def mimo(fields: Fields) -> Decoder:
    """MiMo-7B: Qwen2's layers and one MTP layer (MiMo remote code; vllm/model_executor/models/mimo_mtp.py)."""
    fields.ignore("use_mrope", "max_window_layers")
    plan = LayerPlan(
        mixer=shapes.softmax(fields, window=shapes.window(fields, on=False)),
        ffn=shapes.dense(fields),
        attention=AttentionStyle(qkv_bias=fields.flag("attention_bias", default=True)),
    )
    depth = fields.count("num_nextn_predict_layers", default=0, low=0, high=16, quiet=True)
    mtp = tuple(
        MtpPlan(
            layers=(plan,),
            prefix=f"model.mtp_layers.{index}.",
            layer_prefixes=(f"model.mtp_layers.{index}.",),
            norms=("token_layernorm", "hidden_layernorm", "final_layernorm"),
            projection="input_proj",
        )
        for index in range(depth)
    )
    return shapes.llama_like(fields, [plan] * fields.layers(), mtp=mtp)


def mimo_v2(fields: Fields) -> Decoder:
    """MiMo-V2-Flash (vllm/model_executor/models/mimo_v2_flash.py): windowed layers have heads and sinks of their own."""
    layers = fields.layers()
    pattern = fields.per_layer("hybrid_layer_pattern", layers, fields.counts("hybrid_layer_pattern", high=1))
    if pattern is None:
        raise InputError(f"{fields.label('hybrid_layer_pattern')} is missing; give 1 for each windowed layer, else 0")
    sparse = fields.per_layer("moe_layer_freq", layers, fields.counts("moe_layer_freq", high=1))
    full = _attention(fields, "")
    sliding = _attention(fields, "swa_")
    experts = ExpertFfn(
        experts=fields.count("n_routed_experts", high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields),
        intermediate=fields.count("moe_intermediate_size"),
    )
    fields.ignore(
        "n_shared_experts", "attention_value_scale", "hybrid_block_size", "attention_chunk_size", "layernorm_epsilon"
    )
    dense: Ffn = DenseFfn(intermediate=shapes.intermediate(fields))
    bias = fields.flag("attention_bias", default=False)
    plans = [
        LayerPlan(
            mixer=sliding if pattern[index] else full,
            ffn=experts if sparse is None or sparse[index] else dense,
            attention=AttentionStyle(qkv_bias=bias),
            ffn_style=FfnStyle(score_bias=True),
        )
        for index in range(layers)
    ]
    if fields.count("num_nextn_predict_layers", default=0, low=0, high=16, quiet=True):
        fields.leave_out("MTP layers are not counted for this family")
    return shapes.llama_like(fields, plans)


def _attention(fields: Fields, mark: str) -> SoftmaxAttention:
    """Heads of full ("") or windowed ("swa_") layers."""
    query = fields.count(f"{mark}num_attention_heads", "num_attention_heads", high=shapes.MOST_HEADS)
    k_dim = fields.count(f"{mark}head_dim", "head_dim", high=2**14)
    size = fields.count("sliding_window_size", "sliding_window", high=2**40) if mark else None
    sinks = fields.flag(f"add_{mark or 'full_'}attention_sink_bias", default=False)
    return SoftmaxAttention(
        heads=query,
        kv_heads=fields.count(f"{mark}num_key_value_heads", "num_key_value_heads", high=shapes.MOST_HEADS),
        k_dim=k_dim,
        v_dim=fields.count(f"{mark}v_head_dim", "v_head_dim", default=k_dim, high=2**14, quiet=True),
        window=size,
        sinks=sinks,
    )
