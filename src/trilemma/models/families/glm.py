"""Zhipu GLM: ChatGLM and GLM-4 dense, GLM-4.5 to 4.7 mixtures (the MLA models are DeepSeek's kin)."""

from __future__ import annotations

from trilemma.errors import InputError
from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, QkNorm, SoftmaxAttention
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def chatglm(fields: Fields) -> Decoder:
    """ChatGLM2, ChatGLM3 and GLM-4-9B (remote code; vllm/model_executor/models/chatglm.py): two groups of keys and values."""
    if not fields.flag("rmsnorm", default=True):
        raise InputError("rmsnorm is false: ChatGLM with layer norms is not known")
    query = shapes.heads(fields)
    groups = fields.count("multi_query_group_num", default=query, high=shapes.MOST_HEADS, quiet=True)
    kv = groups if fields.flag("multi_query_attention", default=True) else query
    size = shapes.head_dim(fields, query)
    linear = fields.flag("add_bias_linear", default=False)
    fields.ignore(
        "apply_query_key_layer_scaling", "apply_residual_connection_post_layernorm", "attention_softmax_in_fp32",
        "bias_dropout_fusion", "fp32_residual_connection", "original_rope", "post_layer_norm", "pre_seq_len",
        "prefix_projection", "rope_ratio", "use_cache", "vocab_size", "num_key_value_heads", "interleaved_qkv",
    )  # fmt: skip
    plan = LayerPlan(
        mixer=SoftmaxAttention(heads=query, kv_heads=kv, k_dim=size, v_dim=size),
        ffn=DenseFfn(intermediate=fields.count("ffn_hidden_size", "intermediate_size")),
        attention=AttentionStyle(
            qkv_bias=fields.flag("add_qkv_bias", default=True) or linear,
            o_bias=linear,
            name="self_attention",
            o_name="dense",
        ),
        ffn_style=FfnStyle(bias=linear),
    )
    return Decoder(
        hidden=shapes.hidden_size(fields),
        vocab=fields.count("padded_vocab_size", "vocab_size"),
        layers=[plan] * fields.layers("num_layers", "num_hidden_layers"),
        max_positions=shapes.max_positions(fields),
        tied=shapes.tied(fields),
        prefix="transformer.encoder.",
        embedding="embedding.word_embeddings",
        final_norm="final_layernorm",
        head="transformer.output_layer",
    )


def glm(fields: Fields) -> Decoder:
    """GLM-4 9B in transformers' own layout and GLM-4-0414 (transformers: models/glm, models/glm4)."""
    around = fields.family == "glm4"
    plan = LayerPlan(
        mixer=shapes.softmax(fields, kv_default=2, head_default=128),
        ffn=shapes.dense(fields),
        attention=AttentionStyle(qkv_bias=fields.flag("attention_bias", default=True)),
        mixer_norms=("input_layernorm", "post_self_attn_layernorm") if around else ("input_layernorm",),
        ffn_norms=("post_attention_layernorm", "post_mlp_layernorm") if around else ("post_attention_layernorm",),
    )
    return shapes.llama_like(fields, [plan] * fields.layers())


def glm4_moe(fields: Fields) -> Decoder:
    """GLM-4.5, 4.6, 4.7 and Air (transformers: models/glm4_moe): DeepSeek's mixtures on grouped-query attention, with MTP."""
    norm: QkNorm | None = "head" if fields.flag("use_qk_norm", default=False) else None
    style = AttentionStyle(qkv_bias=fields.flag("attention_bias", default=False), qk_norm=norm)
    return grouped_mixture(fields, style, head_default=128)


def dots1(fields: Fields) -> Decoder:
    """dots.llm1 (transformers: models/dots1): a norm on each head and two shared experts."""
    bias = fields.flag("attention_bias", default=False)
    return grouped_mixture(fields, AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm="head"))


def deepseek(fields: Fields) -> Decoder:
    """DeepSeek-MoE 16B, the first (remote code): softmax attention, no correction of scores."""
    bias = fields.flag("attention_bias", default=False)
    fields.values = {"topk_method": "greedy", **fields.values}
    return grouped_mixture(fields, AttentionStyle(qkv_bias=bias, o_bias=bias))


def afmoe(fields: Fields) -> Decoder:
    """Trinity (vllm/model_executor/models/afmoe.py): gated attention with windows, norms around both halves.

    The gate is a matrix of its own in the checkpoint; it is counted with the queries, as wide as they are.
    """
    layers = fields.layers()
    size = fields.count("sliding_window", default=2048, high=2**40)
    period = fields.count("global_attn_every_n_layers", default=4, high=4096, quiet=True)
    mixers = shapes.windowed(
        fields,
        layers,
        full=shapes.softmax(fields),
        sliding=shapes.softmax(fields, window=size),
        default=shapes.every(period, layers),
    )
    width = fields.count("moe_intermediate_size")
    moe: Ffn = ExpertFfn(
        experts=fields.count("num_experts", high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields),
        intermediate=width,
        shared_intermediate=width * fields.count("num_shared_experts", default=1, low=0, high=64, quiet=True),
    )
    dense: Ffn = shapes.dense(fields)
    first = fields.count("num_dense_layers", default=1, low=0, high=4096)
    fields.ignore(
        "mup_enabled", "n_group", "route_norm", "route_scale", "score_func", "num_expert_groups", "load_balance_coeff"
    )
    plans = [
        LayerPlan(
            mixer=mixer,
            ffn=moe if index >= first else dense,
            attention=AttentionStyle(qk_norm="head", gate="elementwise"),
            ffn_style=FfnStyle(router="router.gate", score_bias=True),
            mixer_norms=("input_layernorm", "post_attention_layernorm"),
            ffn_norms=("pre_mlp_layernorm", "post_mlp_layernorm"),
        )
        for index, mixer in enumerate(mixers)
    ]
    return shapes.llama_like(fields, plans)


def bailing_moe(fields: Fields) -> Decoder:
    """Ling and Ring (vllm/model_executor/models/bailing_moe.py): the second generation has norms of each head."""
    norm: QkNorm | None = "head" if fields.flag("use_qk_norm", default=False) else None
    style = AttentionStyle(
        qkv_bias=fields.flag("use_qkv_bias", default=False),
        o_bias=fields.flag("use_bias", default=False),
        qk_norm=norm,
        name="attention",
        o_name="dense",
    )
    corrected = fields.flag("moe_router_enable_expert_bias", default=False)
    fields.values = {**fields.values, "topk_method": "noaux_tc" if corrected else "greedy"}
    fields.ignore("moe_shared_expert_intermediate_size", "norm_head", "norm_softmax", "router_dtype", "score_function")
    return grouped_mixture(fields, style)


def grouped_mixture(fields: Fields, attention: AttentionStyle, *, head_default: int | None = None) -> Decoder:
    """Dense first layers, then routed and shared experts, on grouped-query attention; MTP modules as further layers."""
    layers = fields.layers()
    size = fields.count("moe_intermediate_size")
    groups, top_groups = shapes.routing_groups(fields)
    moe: Ffn = ExpertFfn(
        experts=fields.count("n_routed_experts", "num_experts", high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields),
        intermediate=size,
        shared_intermediate=size
        * fields.count("n_shared_experts", "num_shared_experts", default=1, low=0, high=64, quiet=True),
        groups=groups,
        top_groups=top_groups,
    )
    first = fields.count("first_k_dense_replace", default=0, low=0, high=4096, quiet=True)
    every = fields.count("moe_layer_freq", default=1, high=4096, quiet=True)
    dense: Ffn = shapes.dense(fields)
    style = FfnStyle(score_bias=fields.text("topk_method", default="noaux_tc") == "noaux_tc")
    mixer = shapes.softmax(fields, head_default=head_default)
    plans = [
        LayerPlan(
            mixer=mixer,
            ffn=moe if index >= first and index % every == 0 else dense,
            attention=attention,
            ffn_style=style,
        )
        for index in range(layers)
    ]
    modules = fields.count("num_nextn_predict_layers", default=0, low=0, high=64, quiet=True)
    return shapes.llama_like(fields, plans, mtp=shapes.deepseek_mtp(plans[-1], layers=layers, modules=modules))
