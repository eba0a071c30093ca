"""Qwen3-Next and Qwen3.5 to 3.8: three layers of gated delta net to one of gated attention, dense or mixture, with MTP."""

from __future__ import annotations

from trilemma.models.architecture import ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, Mixer, OutputGate, RecurrentState
from trilemma.models.blocks.decoder import Decoder, LayerPlan, MtpPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import qwen, shapes
from trilemma.models.fields import Fields

_STYLE = FfnStyle(shared="shared_expert", shared_gate=True)


def qwen3_5(fields: Fields) -> Decoder:
    """Qwen3.5, 3.6 and 3.8 dense (transformers: models/qwen3_5)."""
    layers = fields.layers()
    fields.ignore("mlp_only_layers")
    return _decoder(fields, [shapes.dense(fields)] * layers, prefix="model.language_model.")


def qwen3_5_moe(fields: Fields) -> Decoder:
    """Qwen3.5 mixtures (transformers: models/qwen3_5_moe): a shared expert behind a sigmoid gate in every layer."""
    experts = _experts(fields, count=256, size=512, shared=512)
    return _decoder(fields, qwen.mixture(fields, fields.layers(), experts), prefix="model.language_model.")


def qwen3_next(fields: Fields) -> Decoder:
    """Qwen3-Next (transformers: models/qwen3_next); its MTP module is in the checkpoint and not in the configuration."""
    experts = _experts(fields, count=512, size=512, shared=512)
    return _decoder(fields, qwen.mixture(fields, fields.layers(), experts), prefix="model.", mtp_default=1)


def _experts(fields: Fields, *, count: int, size: int, shared: int) -> ExpertFfn:
    return ExpertFfn(
        experts=fields.count("num_experts", default=count, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=8 if count == 256 else 10),
        intermediate=fields.count("moe_intermediate_size", default=size),
        shared_intermediate=fields.count("shared_expert_intermediate_size", default=shared, low=0),
    )


def delta_net(fields: Fields) -> RecurrentState:
    """The gated delta net of ``linear_*`` fields; defaults are those of Qwen3-Next's configuration class."""
    keys = fields.count("linear_num_key_heads", default=16, high=shapes.MOST_HEADS)
    values = fields.count("linear_num_value_heads", default=32, high=shapes.MOST_HEADS)
    key_dim = fields.count("linear_key_head_dim", default=128, high=2**14)
    value_dim = fields.count("linear_value_head_dim", default=128, high=2**14)
    return RecurrentState(
        kind="gated_delta_net",
        heads=values,
        key_heads=keys,
        state_rows=key_dim,
        state_columns=value_dim,
        conv_channels=2 * keys * key_dim + values * value_dim,
        conv_width=fields.count("linear_conv_kernel_dim", default=4, high=64),
        state_format=shapes.state_format(fields),
        conv_format=fields.dtype,
    )


def _decoder(fields: Fields, ffns: list[Ffn], *, prefix: str, mtp_default: int = 0) -> Decoder:
    layers = len(ffns)
    full: Mixer = shapes.softmax(fields, head_default=256)
    linear: Mixer = delta_net(fields)
    period = fields.count("full_attention_interval", default=4, high=4096, quiet=True)
    default = ["full_attention" if (index + 1) % period == 0 else "linear_attention" for index in range(layers)]
    known: dict[str, Mixer] = {"full_attention": full, "linear_attention": linear}
    mixers = shapes.kinds(fields.layer_types(layers, default), known, fields, "layer_types")
    gate: OutputGate | None = "elementwise" if fields.flag("attn_output_gate", default=True) else None
    bias = fields.flag("attention_bias", default=False)
    style = AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm="head", gate=gate)
    plans = [
        LayerPlan(mixer=mixer, ffn=ffn, attention=style, ffn_style=_STYLE)
        for mixer, ffn in zip(mixers, ffns, strict=True)
    ]
    depth = fields.count(
        "mtp_num_hidden_layers", "num_nextn_predict_layers", default=mtp_default, low=0, high=16, quiet=True
    )
    fields.ignore("mtp_use_dedicated_embeddings")
    last = LayerPlan(mixer=full, ffn=ffns[-1], attention=style, ffn_style=_STYLE)
    mtp = MtpPlan(
        layers=(last,) * depth,
        prefix="mtp.",
        layer_prefixes=tuple(f"mtp.layers.{index}." for index in range(depth)),
        norms=("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
        projection="fc",
    )
    return shapes.llama_like(fields, plans, prefix=prefix, mtp=(mtp,) if depth else ())
