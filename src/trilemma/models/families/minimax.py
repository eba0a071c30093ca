"""MiniMax: M2 (grouped-query mixtures) and Text-01 (lightning attention with full layers between)."""

from __future__ import annotations

from trilemma.models.architecture import ExpertFfn
from trilemma.models.attention import AttentionStyle, Mixer, QkNorm, RecurrentState
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def minimax_m2(fields: Fields) -> Decoder:
    """MiniMax-M2 to M2.7 (vllm/model_executor/models/minimax_m2.py): norms over all heads of q and k, no shared expert."""
    experts = ExpertFfn(
        experts=fields.count("num_local_experts", high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields),
        intermediate=shapes.intermediate(fields),
        shared_intermediate=fields.count("shared_intermediate_size", default=0, low=0, quiet=True),
    )
    fields.ignore("qk_norm_type", "attn_type_list", "num_mtp_modules", "mtp_transformer_layers", "sliding_window")
    norm: QkNorm | None = "heads" if fields.flag("use_qk_norm", default=True) else None
    plan = LayerPlan(
        mixer=shapes.softmax(fields, head_default=128),
        ffn=experts,
        attention=AttentionStyle(qk_norm=norm),
        ffn_style=FfnStyle(
            moe_name="block_sparse_moe",
            expert_names=("w1", "w3", "w2"),
            score_bias=fields.flag("use_routing_bias", default=True),
        ),
    )
    if fields.flag("use_mtp", default=False):
        fields.assume("MTP modules that the configuration names are not in published checkpoints and are not counted")
    return shapes.llama_like(fields, [plan] * fields.layers())


def minimax_text(fields: Fields) -> Decoder:
    """MiniMax-Text-01 and M1 (vllm/model_executor/models/minimax_text_01.py): seven lightning layers to one of softmax."""
    layers = fields.layers()
    full = shapes.softmax(fields, head_default=128)
    linear = RecurrentState(
        kind="lightning",
        heads=full.heads,
        key_heads=full.heads,
        state_rows=full.k_dim,
        state_columns=full.k_dim,
        conv_channels=0,
        conv_width=0,
        state_format=fields.dtype,
        conv_format=fields.dtype,
    )
    experts = ExpertFfn(
        experts=fields.count("num_local_experts", default=32, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=2),
        intermediate=shapes.intermediate(fields),
        shared_intermediate=fields.count("shared_intermediate_size", default=0, low=0, quiet=True),
    )
    fields.ignore("postnorm", "shared_moe_mode", "layer_types", "block_size")
    default = [int((index + 1) % 8 == 0) for index in range(layers)]
    kinds = fields.per_layer("attn_type_list", layers, fields.counts("attn_type_list", high=1)) or default
    mixers: list[Mixer] = [full if kind else linear for kind in kinds]
    style = FfnStyle(moe_name="block_sparse_moe", expert_names=("w1", "w3", "w2"))
    return shapes.llama_like(fields, [LayerPlan(mixer=mixer, ffn=experts, ffn_style=style) for mixer in mixers])
