"""DeepSeek-V2 to V3.2, Kimi-K2 and GLM-5: multi-head latent attention, many small experts, dense first layers."""

from __future__ import annotations

from dataclasses import replace

from trilemma.models.architecture import DenseFfn, ExpertFfn, Ffn
from trilemma.models.attention import LatentAttention
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def deepseek_v2(fields: Fields) -> Decoder:
    """DeepSeek-V2 and V2-Lite (transformers: models/deepseek_v2): greedy routing, no correction of scores."""
    return _decoder(fields, score_bias=False)


def deepseek_v3(fields: Fields) -> Decoder:
    """DeepSeek-V3, R1, V3.1, V3.2 (with its indexer) and Kimi-K2 (transformers: models/deepseek_v3)."""
    return _decoder(fields, score_bias=fields.text("topk_method", default="noaux_tc") == "noaux_tc")


def glm_moe_dsa(fields: Fields) -> Decoder:
    """GLM-5: DeepSeek-V3.2's layers in other sizes (transformers: models/glm_moe_dsa)."""
    fields.ignore("head_dim", "qk_head_dim", "topk_method")
    return _decoder(fields, score_bias=True)


def kimi_vl(fields: Fields) -> Decoder:
    """The text part of Kimi-VL where it stands without a ``text_config``: Moonlight, a DeepSeek-V3 of 16B."""
    return deepseek_v3(fields)


def latent(fields: Fields) -> LatentAttention:
    """MLA sizes; ``index_*`` where the configuration has the sparse indexer."""
    fields.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    index = fields.optional_count("index_n_heads", high=shapes.MOST_HEADS)
    return LatentAttention(
        heads=shapes.heads(fields),
        q_rank=fields.optional_count("q_lora_rank", high=shapes.WIDEST),
        kv_rank=fields.count("kv_lora_rank", high=shapes.WIDEST),
        nope_dim=fields.count("qk_nope_head_dim", high=2**14),
        rope_dim=fields.count("qk_rope_head_dim", high=2**14),
        v_dim=fields.count("v_head_dim", high=2**14),
        index_heads=index,
        index_dim=fields.count("index_head_dim", default=128, high=2**14) if index else None,
        index_topk=fields.count("index_topk", default=2048, high=2**30) if index else None,
    )


def experts(fields: Fields) -> ExpertFfn | None:
    """Routed and shared experts; None for a dense model. Kimi-K3 runs its routed experts at a width of their own."""
    count = fields.optional_count("n_routed_experts", "num_experts", high=shapes.MOST_EXPERTS)
    if count is None:
        return None
    size = fields.count("moe_intermediate_size")
    groups, top_groups = shapes.routing_groups(fields)
    return ExpertFfn(
        experts=count,
        top_k=shapes.experts_per_token(fields),
        intermediate=size,
        shared_intermediate=size
        * fields.count("n_shared_experts", "num_shared_experts", default=0, low=0, high=64, quiet=True),
        hidden=fields.optional_count("routed_expert_hidden_size", high=shapes.WIDEST),
        groups=groups,
        top_groups=top_groups,
    )


def _decoder(fields: Fields, *, score_bias: bool) -> Decoder:
    layers = fields.layers()
    mixer, moe = latent(fields), experts(fields)
    bias = fields.flag("attention_bias", default=False)
    style = FfnStyle(score_bias=score_bias)
    ffns = order(fields, layers, moe)
    mixers = _indexers(fields, layers, mixer)
    plans = [
        LayerPlan(mixer=own, ffn=ffn, ffn_style=style, latent_bias=bias) for own, ffn in zip(mixers, ffns, strict=True)
    ]
    modules = fields.count("num_nextn_predict_layers", default=0, low=0, high=64, quiet=True)
    return Decoder(
        hidden=shapes.hidden_size(fields),
        vocab=shapes.vocabulary(fields),
        layers=plans,
        max_positions=shapes.max_positions(fields),
        tied=shapes.tied(fields),
        mtp=shapes.deepseek_mtp(plans[-1], layers=layers, modules=modules),
    )


def order(fields: Fields, layers: int, moe: ExpertFfn | None) -> list[Ffn]:
    """Dense and sparse layers: by ``mlp_layer_types`` where given, else ``first_k_dense_replace`` and ``moe_layer_freq``."""
    first = fields.count("first_k_dense_replace", default=0, low=0, high=4096, quiet=True)
    every = fields.count("moe_layer_freq", default=1, high=4096, quiet=True)
    kinds = fields.per_layer("mlp_layer_types", layers, fields.words("mlp_layer_types"))
    if kinds is None:
        sparse = [index >= first and index % every == 0 for index in range(layers)]
    else:
        sparse = shapes.kinds(kinds, {"dense": False, "sparse": True}, fields, "mlp_layer_types")
    if moe is not None and all(sparse):
        fields.ignore("intermediate_size")
        return [moe] * layers
    dense = DenseFfn(intermediate=shapes.intermediate(fields))
    return [moe if chosen and moe is not None else dense for chosen in sparse]


def _indexers(fields: Fields, layers: int, mixer: LatentAttention) -> list[LatentAttention]:
    """One mixer a layer: a layer whose ``indexer_types`` entry is "shared" takes the choice of an earlier layer's indexer."""
    kinds = fields.per_layer("indexer_types", layers, fields.words("indexer_types"))
    if kinds is None:
        return [mixer] * layers
    without = replace(mixer, index_heads=None, index_dim=None)
    return shapes.kinds(kinds, {"full": mixer, "shared": without}, fields, "indexer_types")
