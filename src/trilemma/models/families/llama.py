"""Llama, Mistral, Mixtral and decoders that differ from Llama in a bias, a norm or a name."""

from __future__ import annotations

from trilemma.models.architecture import DenseFfn, ExpertFfn
from trilemma.models.attention import AttentionStyle, QkNorm
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def llama(fields: Fields) -> Decoder:
    """Llama 1 to 3, Mistral and what copies them (transformers: models/llama, models/mistral)."""
    bias = fields.flag("attention_bias", "bias", "qkv_bias", "use_bias", default=False)
    return _llama(fields, AttentionStyle(qkv_bias=bias, o_bias=bias))


def tied_llama(fields: Fields) -> Decoder:
    """Llama with a shared output matrix unless stated otherwise: SmolLM3, Ernie 4.5, MiniCPM, Hunyuan dense has norms."""
    bias = fields.flag("attention_bias", "use_bias", default=False)
    fields.ignore("no_rope_layers", "no_rope_layer_interval", "dim_model_base", "compression_ratio")
    return _llama(fields, AttentionStyle(qkv_bias=bias, o_bias=bias), tie=True)


def seed_oss(fields: Fields) -> Decoder:
    """Seed-OSS: biases on q, k, v alone (transformers: models/seed_oss)."""
    style = AttentionStyle(
        qkv_bias=fields.flag("attention_bias", default=True), o_bias=fields.flag("attention_out_bias", default=False)
    )
    return _llama(fields, style, head_default=128)


def internlm3(fields: Fields) -> Decoder:
    """InternLM3: ``qkv_bias`` and ``bias`` apart (transformers: internlm3 remote code)."""
    plain = fields.flag("bias", default=False)
    return _llama(fields, AttentionStyle(qkv_bias=fields.flag("qkv_bias", default=False), o_bias=plain))


def hunyuan_dense(fields: Fields) -> Decoder:
    """Hunyuan dense: a norm on each head of q and k (transformers: models/hunyuan_v1_dense)."""
    norm: QkNorm | None = "head" if fields.flag("use_qk_norm", default=True) else None
    bias = fields.flag("attention_bias", default=False)
    return _llama(fields, AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm=norm), tie=True)


def stablelm(fields: Fields) -> Decoder:
    """StableLM 2: layer norms with bias, optional norms of each head (transformers: models/stablelm)."""
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=shapes.dense(fields),
        attention=AttentionStyle(qkv_bias=fields.flag("use_qkv_bias", default=False)),
        ffn_norms=() if fields.flag("use_parallel_residual", default=False) else ("post_attention_layernorm",),
    )
    if fields.flag("qk_layernorm", default=False):
        fields.assume("norms of single heads (qk_layernorm) are not counted")
    return shapes.llama_like(fields, [plan] * fields.layers(), norm_bias=True)


def exaone(fields: Fields) -> Decoder:
    """EXAONE 3 and 3.5: Llama under other names."""
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=shapes.dense(fields),
        attention=AttentionStyle(name="attn.attention", o_name="out_proj"),
        ffn_style=FfnStyle(gate="c_fc_0", up="c_fc_1", down="c_proj"),
        mixer_norms=("ln_1",),
        ffn_norms=("ln_2",),
    )
    layers = fields.layers("num_layers", "num_hidden_layers")
    return shapes.llama_like(
        fields, [plan] * layers, prefix="transformer.", layer_name="h", embedding="wte", final_norm="ln_f"
    )


def exaone4(fields: Fields) -> Decoder:
    """EXAONE 4: norms after each half, norms on q and k, windows on three layers of four (transformers: models/exaone4)."""
    layers = fields.layers()
    full, size = shapes.softmax(fields), shapes.window(fields)
    pattern = fields.raw("sliding_window_pattern")
    period = (
        len(pattern)
        if isinstance(pattern, str)
        else fields.count("sliding_window_pattern", default=4, high=64, quiet=True)
    )
    mixers = (
        shapes.windowed(
            fields, layers, full=full, sliding=shapes.softmax(fields, window=size), default=shapes.every(period, layers)
        )
        if size
        else [full] * layers
    )
    fields.ignore("layer_types")
    plans = [
        LayerPlan(
            mixer=mixer,
            ffn=shapes.dense(fields),
            attention=AttentionStyle(qk_norm="head"),
            mixer_norms=("post_attention_layernorm",),
            ffn_norms=("post_feedforward_layernorm",),
        )
        for mixer in mixers
    ]
    return shapes.llama_like(fields, plans)


def arcee(fields: Fields) -> Decoder:
    """AFM (Arcee): Llama with two-matrix feed-forwards (transformers: models/arcee)."""
    plan = LayerPlan(mixer=shapes.softmax(fields), ffn=shapes.dense(fields, gated=False))
    return shapes.llama_like(fields, [plan] * fields.layers())


def apertus(fields: Fields) -> Decoder:
    """Apertus (transformers: models/apertus): two-matrix feed-forwards behind xIELU, a norm on each head of q and k."""
    norm: QkNorm | None = "head" if fields.flag("qk_norm", default=True) else None
    bias = fields.flag("attention_bias", default=False)
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=shapes.dense(fields, gated=False),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm=norm),
        mixer_norms=("attention_layernorm",),
        ffn_norms=("feedforward_layernorm",),
    )
    fields.ignore("post_norm", "mlp_bias")

    def extra(add: Builder, _: int) -> None:
        add.plain("mlp.act_fn.alpha_p", "norm", 1)
        add.plain("mlp.act_fn.alpha_n", "norm", 1)

    return shapes.llama_like(fields, [plan] * fields.layers(), extra=extra)


def nemotron(fields: Fields) -> Decoder:
    """Nemotron-4 and Minitron: squared ReLU with two matrices, layer norms with bias (transformers: models/nemotron)."""
    bias = fields.flag("attention_bias", default=False)
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=shapes.dense(fields, gated=False),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
        ffn_style=FfnStyle(bias=fields.flag("mlp_bias", default=False)),
    )
    return shapes.llama_like(fields, [plan] * fields.layers(), norm_bias=True)


def qwen(fields: Fields) -> Decoder:
    """The first Qwen: ``intermediate_size`` counts both halves of the gated block; biased q, k, v (Qwen remote code)."""
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=DenseFfn(intermediate=shapes.intermediate(fields) // 2),
        attention=AttentionStyle(qkv_bias=True, name="attn", o_name="c_proj"),
        mixer_norms=("ln_1",),
        ffn_norms=("ln_2",),
    )
    fields.ignore("no_bias")
    layers = [plan] * fields.layers()
    return shapes.llama_like(fields, layers, prefix="transformer.", layer_name="h", embedding="wte", final_norm="ln_f")


def mixtral(fields: Fields) -> Decoder:
    """Mixtral: Mistral with a mixture in every layer (transformers: models/mixtral)."""
    experts = ExpertFfn(
        experts=fields.count("num_local_experts", default=8, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=2),
        intermediate=shapes.intermediate(fields),
    )
    plan = LayerPlan(
        mixer=shapes.softmax(fields, kv_default=8, window=shapes.window(fields)),
        ffn=experts,
        ffn_style=FfnStyle(moe_name="block_sparse_moe", expert_names=("w1", "w3", "w2")),
    )
    return shapes.llama_like(fields, [plan] * fields.layers())


def _llama(fields: Fields, style: AttentionStyle, *, tie: bool = False, head_default: int | None = None) -> Decoder:
    layers, size = fields.layers(), shapes.window(fields)
    full = shapes.softmax(fields, head_default=head_default)
    sliding = shapes.softmax(fields, head_default=head_default, window=size)
    default = ["sliding_attention" if size else "full_attention"] * layers
    ffn, ffn_style = shapes.dense(fields), FfnStyle(bias=fields.flag("mlp_bias", default=False))
    plans = [
        LayerPlan(mixer=mixer, ffn=ffn, attention=style, ffn_style=ffn_style)
        for mixer in shapes.windowed(fields, layers, full=full, sliding=sliding, default=default)
    ]
    return shapes.llama_like(fields, plans, tie=tie)
