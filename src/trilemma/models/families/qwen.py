"""Qwen2, Qwen2-MoE, Qwen3 and Qwen3-MoE: biases on q, k, v in the second generation, norms on q and k in the third."""

from __future__ import annotations

from collections.abc import Sequence

from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, SoftmaxAttention
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def qwen2(fields: Fields) -> Decoder:
    """Qwen1.5, Qwen2 and Qwen2.5 dense (transformers: models/qwen2): biased q, k, v and a plain output."""
    mixers = _mixers(fields)
    style = AttentionStyle(qkv_bias=fields.flag("attention_bias", "qkv_bias", default=True))
    ffns: list[Ffn] = [shapes.dense(fields)] * len(mixers)
    return decoder(fields, mixers, ffns, style, FfnStyle())


def qwen3(fields: Fields) -> Decoder:
    """Qwen3 dense (transformers: models/qwen3): a norm on each head of q and k."""
    mixers = _mixers(fields, head_default=128)
    bias = fields.flag("attention_bias", "qkv_bias", default=False)
    ffns: list[Ffn] = [shapes.dense(fields)] * len(mixers)
    return decoder(fields, mixers, ffns, AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm="head"), FfnStyle())


def qwen2_moe(fields: Fields) -> Decoder:
    """Qwen1.5-MoE and Qwen2-MoE (transformers: models/qwen2_moe): a shared expert behind a sigmoid gate."""
    mixers = _mixers(fields)
    experts = ExpertFfn(
        experts=fields.count("num_experts", default=60, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=4),
        intermediate=fields.count("moe_intermediate_size", default=1408),
        shared_intermediate=fields.count("shared_expert_intermediate_size", default=5632, low=0),
    )
    ffns = mixture(fields, len(mixers), experts)
    style = FfnStyle(shared="shared_expert", shared_gate=True)
    return decoder(fields, mixers, ffns, AttentionStyle(qkv_bias=fields.flag("qkv_bias", default=True)), style)


def qwen3_moe(fields: Fields) -> Decoder:
    """Qwen3-MoE (transformers: models/qwen3_moe): no shared expert."""
    mixers = _mixers(fields, head_default=None)
    fields.ignore("use_qk_norm", "qkv_bias")
    experts = ExpertFfn(
        experts=fields.count("num_experts", default=128, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=8),
        intermediate=fields.count("moe_intermediate_size", default=768),
        shared_intermediate=fields.count("shared_expert_intermediate_size", default=0, low=0, quiet=True),
    )
    bias = fields.flag("attention_bias", default=False)
    attention = AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm="head")
    style = FfnStyle(shared="shared_expert", shared_gate=True)
    return decoder(fields, mixers, mixture(fields, len(mixers), experts), attention, style)


def mixture(fields: Fields, layers: int, experts: ExpertFfn) -> list[Ffn]:
    """A mixture on every ``decoder_sparse_step``-th layer that is not in ``mlp_only_layers``."""
    step = fields.count("decoder_sparse_step", default=1, high=4096, quiet=True)
    only = set(fields.counts("mlp_only_layers", high=4096) or ())
    sparse = [index not in only and (index + 1) % step == 0 for index in range(layers)]
    if all(sparse):
        fields.ignore("intermediate_size")
        return [experts] * layers
    dense = DenseFfn(intermediate=shapes.intermediate(fields))
    return [experts if chosen else dense for chosen in sparse]


def decoder(
    fields: Fields,
    mixers: Sequence[SoftmaxAttention],
    ffns: Sequence[Ffn],
    attention: AttentionStyle,
    style: FfnStyle,
    *,
    prefix: str = "model.",
) -> Decoder:
    """A decoder of Qwen's shape from one mixer and one feed-forward a layer."""
    return Decoder(
        hidden=shapes.hidden_size(fields),
        vocab=shapes.vocabulary(fields),
        layers=[
            LayerPlan(mixer=mixer, ffn=ffn, attention=attention, ffn_style=style)
            for mixer, ffn in zip(mixers, ffns, strict=True)
        ],
        max_positions=shapes.max_positions(fields),
        tied=shapes.tied(fields),
        prefix=prefix,
    )


def _mixers(fields: Fields, *, head_default: int | None = None) -> list[SoftmaxAttention]:
    """One mixer a layer; a window only where ``use_sliding_window`` is set, from ``max_window_layers`` on."""
    layers = fields.layers()
    full = shapes.softmax(fields, head_default=head_default)
    size = shapes.window(fields, on=False)
    if size is None:
        fields.ignore("layer_types")
        return [full] * layers
    windowed = shapes.softmax(fields, head_default=head_default, window=size)
    first = fields.count("max_window_layers", default=28, low=0, high=4096, quiet=True)
    default = ["sliding_attention" if index >= first else "full_attention" for index in range(layers)]
    known = {"sliding_attention": windowed, "full_attention": full}
    return shapes.kinds(fields.layer_types(layers, default), known, fields, "layer_types")
