"""Llama 4 (chunked attention, mixtures) and Llama 3.2 Vision (cross-attention layers)."""

from __future__ import annotations

from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, Mixer, SoftmaxAttention
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def llama4(fields: Fields) -> Decoder:
    """Llama 4 (transformers: models/llama4): layers with rotary positions look back one chunk, every fourth on all.

    Its norms of q and k have no weights. ``intermediate_size`` is that of an expert and of the shared expert.
    """
    layers = fields.layers()
    chunk = fields.optional_count("attention_chunk_size", high=2**40) if fields.has("attention_chunk_size") else 8192
    chunked: Mixer = shapes.softmax(fields, head_default=128, chunk=chunk)
    full: Mixer = shapes.softmax(fields, head_default=128)
    interval = fields.count("no_rope_layer_interval", default=4, high=4096, quiet=True)
    rope = fields.counts("no_rope_layers", high=1) or tuple(int((index + 1) % interval != 0) for index in range(layers))
    rope = tuple(fields.per_layer("no_rope_layers", layers, rope) or ())
    experts = ExpertFfn(
        experts=fields.count("num_local_experts", default=16, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=1),
        intermediate=shapes.intermediate(fields),
        shared_intermediate=shapes.intermediate(fields),
    )
    step = fields.count("interleave_moe_layer_step", default=1, high=4096, quiet=True)
    listed = fields.counts("moe_layers", high=4096)
    sparse = set(range(step - 1, layers, step) if listed is None else listed)
    dense: Ffn = DenseFfn(intermediate=fields.count("intermediate_size_mlp", default=16384))
    fields.ignore("use_qk_norm", "layer_types", "for_llm_compressor")
    style = FfnStyle(name="feed_forward", moe_name="feed_forward", router="router", shared="shared_expert")
    bias = fields.flag("attention_bias", default=False)
    plans = [
        LayerPlan(
            mixer=chunked if rope[index] else full,
            ffn=experts if index in sparse else dense,
            ffn_style=style,
            attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
        )
        for index in range(layers)
    ]
    return shapes.llama_like(fields, plans, prefix="language_model.model.", head="language_model.lm_head")


def mllama(fields: Fields) -> Decoder:
    """Llama 3.2 Vision (transformers: models/mllama): gated cross-attention on image tokens every fifth layer.

    The embedding has eight rows more than the vocabulary. A cross layer keeps K and V of the image, not of the text.
    """
    layers = fields.layers()
    count = fields.count("num_cross_attention_layers", default=layers // 5, low=0, high=layers, quiet=True)
    fields.ignore("num_self_attention_layers")
    step = layers // count if count else layers + 1
    listed = fields.counts("cross_attention_layers", high=4096)
    cross = set(range(3, layers, step) if listed is None else listed)
    own = shapes.softmax(fields, kv_default=8)
    image = SoftmaxAttention(
        heads=own.heads, kv_heads=own.kv_heads, k_dim=own.k_dim, v_dim=own.v_dim, cross_tokens=_image_tokens(fields)
    )
    ffn = shapes.dense(fields)
    plans = [
        LayerPlan(mixer=image, ffn=ffn, attention=AttentionStyle(qk_norm="head", name="cross_attn"))
        if index in cross
        else LayerPlan(mixer=own, ffn=ffn)
        for index in range(layers)
    ]
    hidden = shapes.hidden_size(fields)

    def extra(add: Builder, index: int) -> None:
        if index in cross:
            add.plain("cross_attn_attn_gate", "norm", 1)
            add.plain("cross_attn_mlp_gate", "norm", 1)

    def outside(add: Builder) -> None:
        add.plain("embed_tokens.weight (image rows)", "embedding", 8, hidden)

    return shapes.llama_like(
        fields,
        plans,
        prefix="language_model.model.",
        head="language_model.lm_head",
        extra=extra,
        outside=outside,
        notes=("cross-attention layers keep the K and V of one image at its most tiles",),
    )


def _image_tokens(fields: Fields) -> int:
    """Tokens of one image at most: tiles times (patches of a tile and one class token)."""
    vision = fields.values.get("vision_config")
    values = vision if isinstance(vision, dict) else {}
    part = Fields(values, where="vision_config", family="mllama")
    tiles = part.count("max_num_tiles", default=4, high=1024, quiet=True)
    image = part.count("image_size", default=560, high=2**14, quiet=True)
    patch = part.count("patch_size", default=14, high=2**12, quiet=True)
    return int(tiles * ((image // patch) ** 2 + 1))
