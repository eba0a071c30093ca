"""IBM Granite: dense, mixtures, and hybrids of Mamba-2 and attention."""

from __future__ import annotations

from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, Mixer, RecurrentState
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def granite(fields: Fields) -> Decoder:
    """Granite 3 dense (transformers: models/granite): Llama with constant multipliers.

    The configuration class does not tie by default, yet every published Granite 3 ties: a fragment without
    ``architectures`` is read as published, a whole file as the class.
    """
    bias = fields.flag("attention_bias", default=False)
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=shapes.dense(fields),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
        ffn_style=FfnStyle(bias=fields.flag("mlp_bias", default=False)),
    )
    return shapes.llama_like(fields, [plan] * fields.layers(), tie=_fragment(fields))


def granite_moe(fields: Fields) -> Decoder:
    """Granite 3 mixtures, with or without a shared block (transformers: models/granitemoe, granitemoeshared)."""
    bias = fields.flag("attention_bias", default=False)
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=_experts(fields),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
        ffn_style=_style(),
    )
    return shapes.llama_like(fields, [plan] * fields.layers(), tie=_fragment(fields))


#: What Micro and the small dense models of Granite 4, attention throughout, state for layers that they do not have.
_MAMBA_SIZES = (
    "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_expand", "mamba_d_ssm",
)  # fmt: skip


def granite_hybrid(fields: Fields) -> Decoder:
    """Granite 4 (transformers: models/granitemoehybrid): Mamba-2 or attention, then a mixture and a shared block."""
    layers = fields.layers()
    kinds = fields.layer_types(layers, ["mamba"] * layers)
    known: dict[str, Mixer] = {"attention": shapes.softmax(fields)}
    if "mamba" in kinds:
        known["mamba"] = mamba2_state(fields)
    else:
        fields.ignore(*_MAMBA_SIZES)
    bias = fields.flag("attention_bias", default=False)
    ffn = _hybrid_ffn(fields)
    plans = [
        LayerPlan(
            mixer=mixer,
            ffn=ffn,
            attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
            ffn_style=_style() if isinstance(ffn, ExpertFfn) else FfnStyle(name="shared_mlp"),
            recurrent_name="mamba",
            recurrent_bias=fields.flag("mamba_proj_bias", default=False),
            conv_bias=fields.flag("mamba_conv_bias", default=True),
        )
        for mixer in shapes.kinds(kinds, known, fields, "layer_types")
    ]
    fields.ignore("position_embedding_type", "normalization_function")
    return shapes.llama_like(fields, plans, tie=_fragment(fields))


def bamba(fields: Fields) -> Decoder:
    """Bamba (transformers: models/bamba): Mamba-2 with attention at ``attn_layer_indices``, a gated block in each layer."""
    layers = fields.layers()
    state, full = mamba2_state(fields), shapes.softmax(fields, kv_default=8)
    attention = set(fields.counts("attn_layer_indices", high=4096) or ())
    plans = [
        LayerPlan(
            mixer=full if index in attention else state,
            ffn=shapes.dense(fields),
            ffn_style=FfnStyle(name="feed_forward"),
            ffn_norms=("pre_ff_layernorm",),
            recurrent_name="mamba",
            recurrent_bias=fields.flag("mamba_proj_bias", default=False),
            conv_bias=fields.flag("mamba_conv_bias", default=True),
        )
        for index in range(layers)
    ]
    return shapes.llama_like(fields, plans, final_norm="final_layernorm")


def mamba2_state(fields: Fields) -> RecurrentState:
    """Mamba-2 sizes of the ``mamba_*`` field names of Bamba, Granite 4 and Falcon-H1."""
    heads = fields.count("mamba_n_heads", default=128, high=shapes.MOST_HEADS)
    expand = fields.count("mamba_expand", default=2, high=64, quiet=True)
    inner = fields.count("mamba_d_ssm", default=expand * shapes.hidden_size(fields), quiet=True)
    stated = fields.raw("mamba_d_head")
    dim = inner // heads if stated in (None, "auto") else fields.count("mamba_d_head", high=2**14)
    groups = fields.count("mamba_n_groups", default=1, high=shapes.MOST_HEADS)
    columns = fields.count("mamba_d_state", default=256, high=2**14)
    return RecurrentState(
        kind="mamba2",
        heads=heads,
        key_heads=groups,
        state_rows=max(dim, 1),
        state_columns=columns,
        conv_channels=heads * dim + 2 * groups * columns,
        conv_width=fields.count("mamba_d_conv", default=4, high=64),
        state_format=shapes.state_format(fields),
        conv_format=fields.dtype,
    )


def _style() -> FfnStyle:
    return FfnStyle(moe_name="block_sparse_moe", router="router.layer", shared="shared_mlp")


def _experts(fields: Fields) -> ExpertFfn:
    return ExpertFfn(
        experts=fields.count("num_local_experts", default=8, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=2),
        intermediate=shapes.intermediate(fields),
        shared_intermediate=fields.count("shared_intermediate_size", default=0, low=0, quiet=True),
    )


def _hybrid_ffn(fields: Fields) -> Ffn:
    count = fields.count("num_local_experts", default=8, low=0, high=shapes.MOST_EXPERTS)
    shared = fields.count("shared_intermediate_size", default=1024)
    if count:
        return _experts(fields)
    fields.ignore("num_experts_per_tok", "intermediate_size")
    return DenseFfn(intermediate=shared)


def _fragment(fields: Fields) -> bool:
    return not fields.has("architectures")
