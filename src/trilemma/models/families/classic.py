"""Decoders before Llama's shape became common: GPT-2, GPT-J, GPT-NeoX, OPT, BLOOM, Falcon, MPT, StarCoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trilemma.errors import InputError
from trilemma.models.architecture import DenseFfn
from trilemma.models.attention import AttentionStyle, SoftmaxAttention
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def gpt2(fields: Fields) -> Decoder:
    """GPT-2 and GPT-3's shape (transformers: models/gpt2): learned positions, biases, a tied output matrix."""
    fields.ignore(
        "n_ctx", "n_inner", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "activation_function"
    )
    hidden = shapes.hidden_size(fields)
    plan = LayerPlan(
        mixer=_equal_heads(fields, hidden),
        ffn=DenseFfn(
            intermediate=fields.count("n_inner", "intermediate_size", default=4 * hidden, quiet=True), gated=False
        ),
        attention=AttentionStyle(qkv_bias=True, o_bias=True, name="attn", o_name="c_proj"),
        ffn_style=FfnStyle(up="c_fc", down="c_proj", bias=True),
        mixer_norms=("ln_1",),
        ffn_norms=("ln_2",),
    )
    positions = fields.count("n_positions", "max_position_embeddings", default=1024, high=2**24)
    return _outer(
        fields, plan, tie=True, prefix="transformer.", layer_name="h", embedding="wte", final_norm="ln_f",
        positions=positions, position_name="wpe",
    )  # fmt: skip


def gpt_bigcode(fields: Fields) -> Decoder:
    """StarCoder and SantaCoder (transformers: models/gpt_bigcode): GPT-2 with one head of keys and values."""
    plan = gpt2(fields)
    if not fields.flag("multi_query", default=True):
        return plan
    hidden = plan.hidden
    query = shapes.heads(fields)
    single = SoftmaxAttention(heads=query, kv_heads=1, k_dim=hidden // query, v_dim=hidden // query)
    return replace(plan, layers=[replace(layer, mixer=single) for layer in plan.layers])


def gptj(fields: Fields) -> Decoder:
    """GPT-J (transformers: models/gptj): halves side by side under one norm, biases only in the feed-forward and the head."""
    hidden = shapes.hidden_size(fields)
    fields.ignore("n_inner", "n_ctx", "activation_function", "rotary", "scale_attn_weights")
    plan = LayerPlan(
        mixer=_equal_heads(fields, hidden),
        ffn=DenseFfn(
            intermediate=fields.count("n_inner", "intermediate_size", default=4 * hidden, quiet=True), gated=False
        ),
        attention=AttentionStyle(name="attn", o_name="out_proj"),
        ffn_style=FfnStyle(up="fc_in", down="fc_out", bias=True),
        mixer_norms=("ln_1",),
        ffn_norms=(),
    )
    return _outer(
        fields, plan, prefix="transformer.", layer_name="h", embedding="wte", final_norm="ln_f", head_bias=True
    )


def gpt_neox(fields: Fields) -> Decoder:
    """GPT-NeoX and Pythia (transformers: models/gpt_neox): two norms and biases, an output matrix of its own."""
    bias = fields.flag("attention_bias", default=True)
    fields.ignore("use_parallel_residual")
    plan = LayerPlan(
        mixer=_equal_heads(fields, shapes.hidden_size(fields)),
        ffn=shapes.dense(fields, gated=False),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias, name="attention", o_name="dense"),
        ffn_style=FfnStyle(up="dense_h_to_4h", down="dense_4h_to_h", bias=True),
    )
    return _outer(
        fields, plan, prefix="gpt_neox.", embedding="embed_in", final_norm="final_layer_norm", head="embed_out"
    )


def opt(fields: Fields) -> Decoder:
    """OPT (transformers: models/opt): learned positions with two rows more, biases, a tied output matrix."""
    fields.ignore("_remove_final_layer_norm", "layerdrop", "activation_function", "enable_bias", "ffn_dim")
    hidden = shapes.hidden_size(fields)
    narrow = fields.count("word_embed_proj_dim", default=hidden, high=shapes.WIDEST, quiet=True)
    if narrow != hidden:
        raise InputError(
            f"word_embed_proj_dim is {narrow} beside a hidden size of {hidden}; only equal sizes are known"
        )
    last = fields.flag("do_layer_norm_before", default=True)
    plan = LayerPlan(
        mixer=_equal_heads(fields, hidden),
        ffn=shapes.dense(fields, gated=False),
        attention=AttentionStyle(qkv_bias=True, o_bias=True, o_name="out_proj"),
        ffn_style=FfnStyle(name="", up="fc1", down="fc2", bias=True),
        mixer_norms=("self_attn_layer_norm",),
        ffn_norms=("final_layer_norm",),
    )
    positions = fields.count("max_position_embeddings", default=2048, high=2**24) + 2
    return _outer(
        fields, plan, tie=True, prefix="model.decoder.", final_norm="final_layer_norm" if last else None,
        positions=positions,
    )  # fmt: skip


def bloom(fields: Fields) -> Decoder:
    """BLOOM (transformers: models/bloom): no positions, a norm after the embedding, biases, a tied output matrix."""
    fields.ignore("apply_residual_connection_post_layernorm", "slow_but_exact", "unk_token_id", "masked_softmax_fusion")
    fields.ignore(
        "attention_softmax_in_fp32", "bias_dropout_fusion", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv"
    )
    hidden = shapes.hidden_size(fields)
    plan = LayerPlan(
        mixer=_equal_heads(fields, hidden),
        ffn=DenseFfn(
            intermediate=fields.count("intermediate_size", "n_inner", default=4 * hidden, quiet=True), gated=False
        ),
        attention=AttentionStyle(qkv_bias=True, o_bias=True, name="self_attention", o_name="dense"),
        ffn_style=FfnStyle(up="dense_h_to_4h", down="dense_4h_to_h", bias=True),
    )
    return _outer(
        fields, plan, tie=True, prefix="transformer.", layer_name="h", embedding="word_embeddings", final_norm="ln_f",
        embedding_norm="word_embeddings_layernorm",
    )  # fmt: skip


def falcon(fields: Fields) -> Decoder:
    """Falcon 7B, 40B, 180B (transformers: models/falcon): halves side by side, one head or a few heads of keys and values."""
    hidden, query = shapes.hidden_size(fields), shapes.heads(fields)
    new = fields.flag("new_decoder_architecture", default=False)
    multi = fields.flag("multi_query", default=True)
    kv = fields.count(
        "num_kv_heads", "n_head_kv", "num_key_value_heads", default=query, high=shapes.MOST_HEADS, quiet=True
    )
    fields.ignore("alibi", "activation", "parallel_attn", "num_key_value_heads", "ffn_hidden_size", "intermediate_size")
    parallel = fields.flag("parallel_attn", default=True)
    bias = fields.flag("bias", default=False)
    own = fields.count("num_ln_in_parallel_attn", default=2, high=2, quiet=True)
    size = hidden // query
    kv_heads = kv if new else 1 if multi else query
    plan = LayerPlan(
        mixer=SoftmaxAttention(heads=query, kv_heads=kv_heads, k_dim=size, v_dim=size),
        ffn=DenseFfn(intermediate=fields.count("ffn_hidden_size", default=4 * hidden, quiet=True), gated=False),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias, name="self_attention", o_name="dense"),
        ffn_style=FfnStyle(up="dense_h_to_4h", down="dense_4h_to_h", bias=bias),
        mixer_norms=("ln_attn",) if new else ("input_layernorm",),
        ffn_norms=("ln_mlp",) if new and own == 2 else () if parallel else ("post_attention_layernorm",),
    )
    return _outer(
        fields, plan, tie=True, prefix="transformer.", layer_name="h", embedding="word_embeddings", final_norm="ln_f"
    )


def mpt(fields: Fields) -> Decoder:
    """MPT (transformers: models/mpt): no biases, norms without bias, a tied output matrix, ALiBi instead of positions."""
    hidden = fields.count("d_model", "hidden_size", high=shapes.WIDEST)
    ratio = fields.count("expansion_ratio", default=4, high=64, quiet=True)
    part = fields.section("attn_config")
    kv = part.optional_count("kv_n_heads", high=shapes.MOST_HEADS) if part is not None else None
    alibi = part.flag("alibi", default=False) if part is not None else True
    if part is not None:
        part.ignore(
            "attn_type", "attn_impl", "alibi_bias_max", "softmax_scale", "prefix_lm", "attn_uses_sequence_id", "qk_ln"
        )
        part.ignore("clip_qkv", "attn_pdrop", "rope", "rope_impl")
    query = shapes.heads(fields)
    learned = fields.flag("learned_pos_emb", default=True) and not alibi
    fields.ignore("no_bias", "init_device", "embedding_fraction", "norm_type", "learned_pos_emb", "num_key_value_heads")
    fields.ignore("ffn_config", "init_config", "intermediate_size")
    plan = LayerPlan(
        mixer=SoftmaxAttention(heads=query, kv_heads=kv or query, k_dim=hidden // query, v_dim=hidden // query),
        ffn=DenseFfn(intermediate=fields.count("intermediate_size", default=ratio * hidden, quiet=True), gated=False),
        attention=AttentionStyle(name="attn", o_name="out_proj"),
        ffn_style=FfnStyle(name="ffn"),
        mixer_norms=("norm_1",),
        ffn_norms=("norm_2",),
    )
    positions = fields.count("max_seq_len", default=2048, high=2**24, quiet=True) if learned else 0
    return _outer(
        fields, plan, tie=True, prefix="transformer.", layer_name="blocks", embedding="wte", final_norm="norm_f",
        norm_bias=False, positions=positions, position_name="wpe",
    )  # fmt: skip


def starcoder2(fields: Fields) -> Decoder:
    """StarCoder2 (transformers: models/starcoder2): grouped queries, biases everywhere, windows in every layer."""
    bias = fields.flag("use_bias", default=True)
    fields.ignore("norm_type", "mlp_type")
    plan = LayerPlan(
        mixer=shapes.softmax(fields, window=shapes.window(fields)),
        ffn=shapes.dense(fields, gated=False),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias),
        ffn_style=FfnStyle(up="c_fc", down="c_proj", bias=bias),
    )
    return _outer(fields, plan, tie=True)


def _outer(fields: Fields, plan: LayerPlan, *, tie: bool = False, **more: Any) -> Decoder:
    options: dict[str, Any] = {"norm_bias": True, **more}
    return shapes.llama_like(fields, [plan] * fields.layers(*_LAYERS), tie=tie, **options)


def _equal_heads(fields: Fields, hidden: int) -> SoftmaxAttention:
    """As many heads of keys and values as of queries."""
    query = shapes.heads(fields)
    fields.ignore("num_key_value_heads")
    size = shapes.head_dim(fields, query)
    if size * query > 4 * hidden:
        raise InputError(f"head_dim {size} times {query} heads is far from the hidden size {hidden}")
    return SoftmaxAttention(heads=query, kv_heads=query, k_dim=size, v_dim=size)
