"""OLMo, Command R, DBRX, Grok, Ernie and Hunyuan mixtures: Llama's outline with norms and mixtures of their own."""

from __future__ import annotations

from typing import Any

from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import AttentionStyle, QkNorm, SoftmaxAttention
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def olmo(fields: Fields) -> Decoder:
    """OLMo (transformers: models/olmo): layer norms without weights."""
    bias = fields.flag("attention_bias", default=False)
    fields.ignore("clip_qkv")
    plan = LayerPlan(
        mixer=shapes.softmax(fields), ffn=shapes.dense(fields), attention=AttentionStyle(qkv_bias=bias, o_bias=bias)
    )
    return shapes.llama_like(fields, [plan] * fields.layers(), norm_weight=False)


def olmo2(fields: Fields) -> Decoder:
    """OLMo 2 and 3 (transformers: models/olmo2, models/olmo3): norms after each half and over all heads of q and k."""
    bias = fields.flag("attention_bias", default=False)
    layers = fields.layers()
    full, size = shapes.softmax(fields), shapes.window(fields)
    mixers = (
        shapes.windowed(
            fields, layers, full=full, sliding=shapes.softmax(fields, window=size), default=shapes.every(4, layers)
        )
        if size
        else [full] * layers
    )
    fields.ignore("layer_types")
    plans = [
        LayerPlan(
            mixer=mixer,
            ffn=shapes.dense(fields),
            attention=AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm="heads"),
            mixer_norms=("post_attention_layernorm",),
            ffn_norms=("post_feedforward_layernorm",),
        )
        for mixer in mixers
    ]
    return shapes.llama_like(fields, plans)


def olmoe(fields: Fields) -> Decoder:
    """OLMoE (transformers: models/olmoe): 64 small experts in every layer, norms over all heads of q and k."""
    bias = fields.flag("attention_bias", default=False)
    fields.ignore("clip_qkv")
    experts = ExpertFfn(
        experts=fields.count("num_experts", default=64, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=8),
        intermediate=shapes.intermediate(fields),
    )
    style = AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm="heads")
    return shapes.llama_like(
        fields, [LayerPlan(mixer=shapes.softmax(fields), ffn=experts, attention=style)] * fields.layers()
    )


def cohere(fields: Fields) -> Decoder:
    """Command R and R+ (transformers: models/cohere): halves side by side under one norm, tied; R+ has norms of each head."""
    bias = fields.flag("attention_bias", default=False)
    norm: QkNorm | None = "heads" if fields.flag("use_qk_norm", default=False) else None
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=shapes.dense(fields),
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm=norm),
        ffn_norms=(),
    )
    return shapes.llama_like(fields, [plan] * fields.layers(), tie=True)


def cohere2(fields: Fields) -> Decoder:
    """Command R7B and Command A (transformers: models/cohere2): windows in three layers of four."""
    layers = fields.layers()
    period = fields.count("sliding_window_pattern", "_sliding_window_pattern", default=4, high=4096, quiet=True)
    size = fields.count("sliding_window", default=4096, high=2**40)
    mixers = shapes.windowed(
        fields,
        layers,
        full=shapes.softmax(fields),
        sliding=shapes.softmax(fields, window=size),
        default=shapes.every(period, layers),
    )
    bias = fields.flag("attention_bias", default=False)
    style = AttentionStyle(qkv_bias=bias, o_bias=bias)
    fields.ignore("order_of_interleaved_layers", "position_embedding_type", "rotary_pct", "use_embedding_sharing")
    fields.ignore("use_gated_activation", "use_parallel_block", "use_parallel_embedding", "use_qk_norm", "layer_switch")
    plans = [LayerPlan(mixer=mixer, ffn=shapes.dense(fields), attention=style, ffn_norms=()) for mixer in mixers]
    return shapes.llama_like(fields, plans, tie=True)


def dbrx(fields: Fields) -> Decoder:
    """DBRX (transformers: models/dbrx): 16 experts of which 4, layer norms without bias."""
    hidden, query = shapes.hidden_size(fields), shapes.heads(fields)
    attention = fields.section("attn_config") or Fields({}, where="attn_config", family="dbrx")
    mixture = fields.section("ffn_config") or Fields({}, where="ffn_config", family="dbrx")
    attention.ignore("clip_qkv", "rope_theta", "attn_pdrop")
    mixture.ignore(
        "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment", "ffn_act_fn"
    )
    experts = ExpertFfn(
        experts=mixture.count("moe_num_experts", default=4, high=shapes.MOST_EXPERTS),
        top_k=mixture.count("moe_top_k", default=1, high=shapes.MOST_EXPERTS),
        intermediate=mixture.count("ffn_hidden_size", default=3584),
    )
    kv = attention.count("kv_n_heads", default=1, high=shapes.MOST_HEADS)
    plan = LayerPlan(
        mixer=SoftmaxAttention(heads=query, kv_heads=kv, k_dim=hidden // query, v_dim=hidden // query),
        ffn=experts,
        attention=AttentionStyle(name="norm_attn_norm.attn", o_name="out_proj"),
        ffn_style=FfnStyle(moe_name="ffn", router="router.layer", expert_names=("w1", "v1", "w2")),
        mixer_norms=("norm_attn_norm.norm_1",),
        ffn_norms=("norm_attn_norm.norm_2",),
    )
    for part in (attention, mixture):
        for text in part.assumptions:
            fields.assume(text)
    return shapes.llama_like(
        fields, [plan] * fields.layers("n_layers"), prefix="transformer.", layer_name="blocks", embedding="wte",
        final_norm="norm_f",
    )  # fmt: skip


def grok(fields: Fields) -> Decoder:
    """Grok-1 (vllm/model_executor/models/grok1.py): 8 wide experts of which 2, four norms a layer, a tied output matrix."""
    experts = ExpertFfn(
        experts=fields.count("num_local_experts", "num_experts", default=8, high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields, default=2),
        intermediate=shapes.intermediate(fields),
    )
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=experts,
        attention=AttentionStyle(name="attn"),
        ffn_style=FfnStyle(moe_name="moe_block", expert_names=("linear", "linear_v", "linear_1")),
        mixer_norms=("pre_attn_norm", "post_attn_norm"),
        ffn_norms=("pre_moe_norm", "post_moe_norm"),
    )
    return shapes.llama_like(fields, [plan] * fields.layers(), tie=True)


def ernie_moe(fields: Fields) -> Decoder:
    """Ernie 4.5 mixtures (transformers: models/ernie4_5_moe): from one layer to another, shared experts where stated."""
    layers = fields.layers()
    size = fields.count("moe_intermediate_size")
    experts: Ffn = ExpertFfn(
        experts=fields.count("moe_num_experts", high=shapes.MOST_EXPERTS),
        top_k=fields.count("moe_k", default=6, high=shapes.MOST_EXPERTS),
        intermediate=size,
        shared_intermediate=size * fields.count("moe_num_shared_experts", default=0, low=0, high=64, quiet=True),
    )
    first = fields.count("moe_layer_start_index", default=1, low=0, high=4096, quiet=True)
    last = fields.count("moe_layer_end_index", default=layers - 1, low=-1, high=4096, quiet=True)
    step = fields.count("moe_layer_interval", default=1, high=4096, quiet=True)
    end = layers - 1 if last < 0 else last
    fields.ignore(
        "moe_capacity", "moe_use_aux_free", "moe_gate", "moe_norm_min", "num_nextn_predict_layers", "use_bias"
    )
    dense: Ffn = DenseFfn(intermediate=shapes.intermediate(fields))
    style = FfnStyle(score_bias=fields.flag("moe_use_aux_free", default=True))
    mixer = shapes.softmax(fields)
    plans = [
        LayerPlan(
            mixer=mixer, ffn=experts if first <= index <= end and (index + 1) % step == 0 else dense, ffn_style=style
        )
        for index in range(layers)
    ]
    return shapes.llama_like(fields, plans, tie=True)


def hunyuan_moe(fields: Fields) -> Decoder:
    """Hunyuan-A13B (transformers: models/hunyuan_v1_moe): sizes may be stated layer by layer, all alike."""
    norm: QkNorm | None = "head" if fields.flag("use_qk_norm", default=True) else None
    bias = fields.flag("attention_bias", default=False)
    size = _alike(fields, "moe_intermediate_size", default=fields.raw("intermediate_size"))
    experts = ExpertFfn(
        experts=_alike(fields, "num_experts"),
        top_k=_alike(fields, "moe_topk", default=fields.raw("num_experts_per_tok")),
        intermediate=size,
        shared_intermediate=size * _alike(fields, "num_shared_expert", default=0),
    )
    fields.ignore(
        "use_mixed_mlp_moe",
        "moe_layer_num_skipped",
        "use_cla",
        "cla_share_factor",
        "num_experts_per_tok",
        "intermediate_size",
    )
    if fields.flag("use_cla", default=False):
        fields.assume("layers that borrow a neighbour's cache (use_cla) are counted as keeping their own")
    plan = LayerPlan(
        mixer=shapes.softmax(fields),
        ffn=experts,
        attention=AttentionStyle(qkv_bias=bias, o_bias=bias, qk_norm=norm),
        ffn_style=FfnStyle(router="gate.wg", shared="shared_mlp"),
    )
    return shapes.llama_like(fields, [plan] * fields.layers(), tie=True)


def _alike(fields: Fields, key: str, *, default: Any = None) -> int:
    """A whole number, or a list of equal ones, one a layer."""
    value = fields.raw(key)
    if isinstance(value, list | tuple):
        numbers = fields.counts(key, low=0) or (0,)
        if len(set(numbers)) > 1:
            fields.assume(f"{key} differs between layers; its largest value stands for all")
        return max(numbers)
    if value is None and isinstance(default, int):
        return default
    if value is None and isinstance(default, list):
        return _alike(Fields({key: default}, where=fields.where), key)
    return fields.count(key, low=0)
