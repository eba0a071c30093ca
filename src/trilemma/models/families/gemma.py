"""Gemma 1 to 4: tied embeddings, wide heads, windows beside full attention, in Gemma 4 kinds of head by layer."""

from __future__ import annotations

from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, SoftmaxAttention
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields

_AROUND = ("input_layernorm", "post_attention_layernorm")
_AROUND_FFN = ("pre_feedforward_layernorm", "post_feedforward_layernorm")


def gemma(fields: Fields) -> Decoder:
    """Gemma (transformers: models/gemma)."""
    bias = fields.flag("attention_bias", default=False)
    plan = LayerPlan(
        mixer=shapes.softmax(fields, head_default=256),
        ffn=shapes.dense(fields),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
    )
    return shapes.llama_like(fields, [plan] * fields.layers(), tie=True)


def gemma2(fields: Fields) -> Decoder:
    """Gemma 2: norms before and after each half, a window on every other layer (transformers: models/gemma2)."""
    fields.ignore("cache_implementation")
    layers = fields.layers()
    size = fields.count("sliding_window", default=4096, high=2**40)
    return _interleaved(fields, layers, size, period=2, head_default=256, kv_default=4, qk_norm=False)


def gemma3(fields: Fields) -> Decoder:
    """Gemma 3: five windows to one full layer, a norm on each head (transformers: models/gemma3)."""
    fields.ignore("cache_implementation")
    layers = fields.layers()
    size = fields.count("sliding_window", default=4096, high=2**40)
    period = fields.count("sliding_window_pattern", "_sliding_window_pattern", default=6, high=4096, quiet=True)
    if not fields.has("num_attention_heads"):
        fields.assume(f"num_attention_heads is not given; taken as 8, the default of {fields.family}")
        fields.values = {**fields.values, "num_attention_heads": 8}
    prefix = "model." if fields.family == "gemma3_text" and not fields.where else "language_model.model."
    return _interleaved(
        fields, layers, size, period=period, head_default=256, kv_default=4, qk_norm=True, prefix=prefix
    )


def _interleaved(
    fields: Fields,
    layers: int,
    size: int,
    *,
    period: int,
    head_default: int,
    kv_default: int,
    qk_norm: bool,
    prefix: str = "model.",
) -> Decoder:
    full = shapes.softmax(fields, head_default=head_default, kv_default=kv_default)
    sliding = shapes.softmax(fields, head_default=head_default, kv_default=kv_default, window=size)
    mixers = shapes.windowed(fields, layers, full=full, sliding=sliding, default=shapes.every(period, layers))
    bias = fields.flag("attention_bias", default=False)
    style = AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm="head" if qk_norm else None)
    plans = [
        LayerPlan(mixer=mixer, ffn=shapes.dense(fields), attention=style, mixer_norms=_AROUND, ffn_norms=_AROUND_FFN)
        for mixer in mixers
    ]
    return Decoder(
        hidden=shapes.hidden_size(fields),
        vocab=shapes.vocabulary(fields, default=262208 if qk_norm else 256000),
        layers=plans,
        max_positions=shapes.max_positions(fields),
        tied=shapes.tied(fields, default=True),
        prefix=prefix,
    )


def gemma4(fields: Fields) -> Decoder:
    """Gemma 4 (transformers: models/gemma4): global layers have their own heads and may use keys as values.

    The last ``num_kv_shared_layers`` read the cache of earlier layers. E-models add an embedding for every layer.
    """
    layers = fields.layers()
    kinds = fields.layer_types(layers, shapes.every(6, layers))
    shared = fields.count("num_kv_shared_layers", default=0, low=0, high=layers, quiet=True)
    first_shared = layers - shared
    plans = [
        _gemma4_layer(fields, kind, borrows=bool(shared) and index >= first_shared) for index, kind in enumerate(kinds)
    ]
    narrow = fields.count("hidden_size_per_layer_input", default=0, low=0, high=2**16, quiet=True)
    rows = fields.count("vocab_size_per_layer_input", default=262144, quiet=True)
    hidden = shapes.hidden_size(fields)

    def outside(add: Builder) -> None:
        if narrow:
            embed_every_layer(add, rows=rows, layers=layers, narrow=narrow, hidden=hidden)

    def extra(add: Builder, _: int) -> None:
        add.plain("layer_scalar", "norm", 1)
        if narrow:
            mix_layer_embedding(add, narrow=narrow, hidden=hidden)

    return Decoder(
        hidden=hidden,
        vocab=shapes.vocabulary(fields, default=262144),
        layers=plans,
        max_positions=shapes.max_positions(fields),
        tied=shapes.tied(fields, default=True),
        prefix="model.language_model.",
        outside=outside,
        extra=extra,
    )


def embed_every_layer(add: Builder, *, rows: int, layers: int, narrow: int, hidden: int) -> None:
    """The embedding of E-models that every layer has of its own, ``narrow`` wide, beside that of the model."""
    add.plain("embed_tokens_per_layer.weight", "embedding", rows, layers * narrow, shard="vocab", units=rows)
    add.linear("per_layer_model_projection", "latent.up", layers * narrow, hidden)
    add.norm("per_layer_projection_norm", narrow)


def mix_layer_embedding(add: Builder, *, narrow: int, hidden: int) -> None:
    """What one layer has to take its own embedding in."""
    add.linear("per_layer_input_gate", "latent.down", narrow, hidden)
    add.linear("per_layer_projection", "latent.up", hidden, narrow)
    add.norm("post_per_layer_input_norm", hidden)


def _gemma4_layer(fields: Fields, kind: str, *, borrows: bool) -> LayerPlan:
    sliding = shapes.kinds([kind], {"sliding_attention": True, "full_attention": False}, fields, "layer_types")[0]
    k_is_v = fields.flag("attention_k_eq_v", default=False) and not sliding
    query = shapes.heads(fields)
    narrow = fields.count("head_dim", default=256, high=2**14)
    wide = fields.count("global_head_dim", default=512, high=2**14)
    kv = fields.count("num_key_value_heads", high=shapes.MOST_HEADS)
    few = fields.count("num_global_key_value_heads", default=kv, high=shapes.MOST_HEADS, quiet=True)
    size = narrow if sliding else wide
    mixer = SoftmaxAttention(
        heads=query,
        kv_heads=few if k_is_v else kv,
        k_dim=size,
        v_dim=size,
        window=fields.count("sliding_window", default=512, high=2**40) if sliding else None,
        shares_cache=borrows,
    )
    double = 2 if borrows and fields.flag("use_double_wide_mlp", default=False) else 1
    dense = DenseFfn(intermediate=shapes.intermediate(fields) * double)
    ffn, beside, norms = _gemma4_mixture(fields, dense)
    bias = fields.flag("attention_bias", default=False)
    return LayerPlan(
        mixer=mixer,
        ffn=ffn,
        beside=beside,
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm="head", k_is_v=k_is_v, no_kv=borrows),
        ffn_style=FfnStyle(moe_name="moe", router="router.proj"),
        mixer_norms=_AROUND,
        ffn_norms=norms,
    )


def _gemma4_mixture(fields: Fields, dense: DenseFfn) -> tuple[Ffn, DenseFfn | None, tuple[str, ...]]:
    enabled = fields.flag("enable_moe_block", default=False)
    count = fields.optional_count("num_experts", high=shapes.MOST_EXPERTS)
    if not enabled or count is None:
        fields.ignore("moe_intermediate_size", "expert_intermediate_size", "top_k_experts")
        return dense, None, _AROUND_FFN
    experts = ExpertFfn(
        experts=count,
        top_k=fields.count("top_k_experts", high=shapes.MOST_EXPERTS),
        intermediate=fields.count("moe_intermediate_size", "expert_intermediate_size"),
    )
    further = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    return experts, dense, (*_AROUND_FFN, *further)
