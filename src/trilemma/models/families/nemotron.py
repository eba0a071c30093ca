"""NVIDIA Nemotron: blocks chosen one by one (NAS) and hybrids of Mamba-2, attention and mixtures by pattern."""

from __future__ import annotations

from trilemma.errors import InputError
from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, Mixer, RecurrentState, SoftmaxAttention
from trilemma.models.blocks.decoder import Decoder, LayerPlan, MtpPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import MOST_ENTRIES, MOST_LAYERS, Fields
from trilemma.quantities import round_up


def nemotron_nas(fields: Fields) -> Decoder:
    """Llama-Nemotron Super and Ultra (DeciLM remote code): every layer says its KV groups and width, or that it is absent."""
    layers = fields.layers()
    blocks = fields.per_layer("block_configs", layers, fields.entries("block_configs"))
    if blocks is None:
        raise InputError(f"{fields.label('block_configs')} is missing; give one block a layer")
    fields.ignore("num_key_value_heads", "intermediate_size")
    bias = fields.flag("attention_bias", default=False)
    plans = []
    for index, value in enumerate(blocks):
        block = Fields(value, where=f"block_configs[{index}]", family=fields.family)
        plans.append(
            LayerPlan(
                mixer=_block_attention(fields, block),
                ffn=_block_ffn(fields, block),
                attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
            )
        )
    return shapes.llama_like(fields, plans)


def _block_attention(fields: Fields, block: Fields) -> Mixer | None:
    part = block.section("attention")
    if part is None or part.flag("no_op", default=False):
        return None
    if part.flag("replace_with_linear", default=False):
        raise InputError(f"{part.where} is replaced with a linear layer, which is not known here")
    query = shapes.heads(fields)
    group = part.count("n_heads_in_group", high=shapes.MOST_HEADS)
    if query % group:
        raise InputError(
            f"{part.label('n_heads_in_group')} is {group}, which does not divide the {query} attention heads"
        )
    size = shapes.head_dim(fields, query)
    window = part.optional_count("window_length", high=2**40)
    return SoftmaxAttention(heads=query, kv_heads=query // group, k_dim=size, v_dim=size, window=window)


def _block_ffn(fields: Fields, block: Fields) -> Ffn | None:
    part = block.section("ffn")
    if part is None or part.flag("no_op", default=False):
        return None
    if part.flag("replace_with_linear", default=False):
        raise InputError(f"{part.where} is replaced with a linear layer, which is not known here")
    stated = part.optional_count("intermediate_size")
    if stated is not None:
        return DenseFfn(intermediate=stated)
    mult = part.number("ffn_mult", default=0.0, low=0.0, high=1024.0)
    width = int(2 * mult * shapes.hidden_size(fields) / 3)
    if width < 1:
        raise InputError(
            f"{part.label('ffn_mult')} is missing; give the width of the block as a multiple of hidden_size"
        )
    return DenseFfn(intermediate=int(round_up(width, 256)))


def nemotron_h(fields: Fields) -> Decoder:
    """Nemotron-H, Nano v2 and Nemotron-3 (vllm/model_executor/models/nemotron_h.py): one half-layer a letter.

    ``M`` is Mamba-2, ``*`` attention, ``-`` a two-matrix block, ``E`` a mixture; experts of ``moe_latent_size`` run
    between a projection down and one up. The MTP module repeats ``mtp_hybrid_override_pattern``.
    """
    pattern = _pattern(fields, "hybrid_override_pattern")
    if not pattern:
        raise InputError(f"{fields.label('hybrid_override_pattern')} is missing; give one letter a layer, such as M*-E")
    stated = fields.layers()
    if stated != len(pattern):
        raise InputError(
            f"{fields.label('num_hidden_layers')} is {stated}, but hybrid_override_pattern has {len(pattern)} letters"
        )
    fields.ignore(
        "expand", "n_shared_experts", "attention_head_dim", "head_dim", "layers_block_type", "moe_latent_size"
    )
    if "-" not in pattern:
        fields.ignore("intermediate_size")
    plans = [_half_layer(fields, letter) for letter in pattern]
    depth = fields.count("num_nextn_predict_layers", default=0, low=0, high=16, quiet=True)
    mtp_pattern = _pattern(fields, "mtp_hybrid_override_pattern")
    mtp = MtpPlan(
        layers=tuple(_half_layer(fields, letter) for letter in mtp_pattern),
        prefix="mtp.layers.0.",
        layer_prefixes=tuple(f"mtp.layers.{index}." for index in range(len(mtp_pattern))),
        norms=("enorm", "hnorm", "final_layernorm"),
    )
    return shapes.llama_like(
        fields,
        plans,
        prefix="backbone.",
        embedding="embeddings",
        final_norm="norm_f",
        mtp=(mtp,) * depth if mtp_pattern else (),
    )


def _pattern(fields: Fields, key: str) -> str:
    value = fields.text(key)
    if len(value) > min(MOST_LAYERS, MOST_ENTRIES) or set(value) - set("M*-E"):
        raise InputError(f"{fields.label(key)} is {value[:40]!r}; give at most {MOST_LAYERS} of the letters M, *, -, E")
    return value


def _half_layer(fields: Fields, letter: str) -> LayerPlan:
    mixer: Mixer | None = None
    ffn: Ffn | None = None
    if letter == "M":
        mixer = mamba2_state(fields)
    elif letter == "*":
        mixer = shapes.softmax(fields)
    elif letter == "-":
        ffn = DenseFfn(intermediate=shapes.intermediate(fields), gated=False)
    else:
        ffn = _experts(fields)
    attention_bias = fields.flag("attention_bias", default=False)
    return LayerPlan(
        mixer=mixer,
        ffn=ffn,
        attention=AttentionStyle(qkv_bias=attention_bias, o_bias=attention_bias, name="mixer"),
        ffn_style=FfnStyle(
            name="mixer", moe_name="mixer", score_bias=True, bias=fields.flag("mlp_bias", default=False)
        ),
        mixer_norms=("norm",),
        ffn_norms=("norm",),
        recurrent_bias=fields.flag("use_bias", "mamba_proj_bias", default=False),
        conv_bias=fields.flag("use_conv_bias", default=True),
    )


def mamba2_state(fields: Fields) -> RecurrentState:
    """Mamba-2 sizes of Nemotron's field names."""
    heads = fields.count("mamba_num_heads", default=128, high=shapes.MOST_HEADS)
    dim = fields.count("mamba_head_dim", default=64, high=2**14)
    groups = fields.count("n_groups", default=8, high=shapes.MOST_HEADS)
    state = fields.count("ssm_state_size", default=128, high=2**14)
    return RecurrentState(
        kind="mamba2",
        heads=heads,
        key_heads=groups,
        state_rows=dim,
        state_columns=state,
        conv_channels=heads * dim + 2 * groups * state,
        conv_width=fields.count("conv_kernel", default=4, high=64),
        state_format=shapes.state_format(fields),
        conv_format=fields.dtype,
    )


def _experts(fields: Fields) -> ExpertFfn:
    size = fields.count("moe_intermediate_size")
    shared = fields.count("n_shared_experts", default=0, low=0, high=64, quiet=True)
    each = fields.count("moe_shared_expert_intermediate_size", default=size, quiet=True)
    groups, top_groups = shapes.routing_groups(fields)
    return ExpertFfn(
        experts=fields.count("n_routed_experts", high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields),
        intermediate=size,
        shared_intermediate=each * shared,
        gated=False,
        hidden=fields.optional_count("moe_latent_size", high=shapes.WIDEST),
        groups=groups,
        top_groups=top_groups,
    )
