"""DeepSeek-V4: attention over compressed latents, hyper-connections, experts in FP4, the first layers routed by token."""

from __future__ import annotations

from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.models.architecture import ExpertFfn
from trilemma.models.attention import CompressedAttention, CompressedStyle
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.decoder import Decoder, LayerPlan, MtpPlan
from trilemma.models.blocks.feed_forward import FfnStyle
from trilemma.models.families import shapes
from trilemma.models.fields import Fields


def deepseek_v4(fields: Fields) -> Decoder:
    """DeepSeek-V4 (vllm/model_executor/models/deepseek_v4.py; names as in the published checkpoint).

    ``compress_ratios`` has one entry a layer (0: window only) and may have one more for the MTP layer, whose attention
    keeps the window only. Ratio 4 has an indexer. The first ``num_hash_layers`` route by a table of token ids.
    """
    layers = fields.layers()
    ratios = fields.per_layer("compress_ratios", layers, fields.counts("compress_ratios", high=2**16))
    if ratios is None:
        raise InputError(f"{fields.label('compress_ratios')} is missing; give the stride of each layer, 0 for none")
    experts = ExpertFfn(
        experts=fields.count("n_routed_experts", high=shapes.MOST_EXPERTS),
        top_k=shapes.experts_per_token(fields),
        intermediate=fields.count("moe_intermediate_size"),
        shared_intermediate=fields.count("moe_intermediate_size")
        * fields.count("n_shared_experts", default=1, low=0, high=64),
    )
    hashed = fields.count("num_hash_layers", default=0, low=0, high=4096, quiet=True)
    plans = [_layer(fields, ratio, experts, hashed=index < hashed) for index, ratio in enumerate(ratios)]
    hidden, vocab = shapes.hidden_size(fields), shapes.vocabulary(fields)
    mult = fields.count("hc_mult", default=4, high=64)
    fields.ignore("num_key_value_heads", "intermediate_size")

    def extra(add: Builder, index: int) -> None:
        hyper_connections(add, hidden, mult)
        if 0 <= index < hashed:
            add.plain("ffn.gate.tid2eid", "table", vocab, experts.top_k, fmt=catalogue.get("fp32"))

    def outside(add: Builder) -> None:
        _joining(add, hidden, mult)

    depth = fields.count("num_nextn_predict_layers", default=0, low=0, high=16, quiet=True)
    last = _layer(fields, 0, experts, hashed=False)
    return Decoder(
        hidden=hidden,
        vocab=vocab,
        layers=plans,
        max_positions=shapes.max_positions(fields),
        tied=shapes.tied(fields),
        prefix="",
        embedding="embed",
        head="head",
        extra=extra,
        outside=outside,
        mtp=tuple(_mtp(last, index, hidden, mult) for index in range(depth)),
    )


def _layer(fields: Fields, ratio: int, experts: ExpertFfn, *, hashed: bool) -> LayerPlan:
    indexed = ratio == 4
    fields.ignore("index_n_heads", "index_head_dim", "index_topk")
    mixer = CompressedAttention(
        heads=shapes.heads(fields),
        head_dim=fields.count("head_dim", default=512, high=2**14),
        rope_dim=fields.count("qk_rope_head_dim", default=64, high=2**14),
        q_rank=fields.count("q_lora_rank", high=shapes.WIDEST),
        stride=ratio if ratio > 1 else 0,
        window=fields.count("sliding_window", default=128, high=2**30),
        index_heads=fields.count("index_n_heads", default=64, high=shapes.MOST_HEADS) if indexed else None,
        index_dim=fields.count("index_head_dim", default=128, high=2**14) if indexed else None,
        index_topk=fields.count("index_topk", default=512, high=2**30) if indexed else None,
    )
    output = CompressedStyle(
        o_groups=fields.count("o_groups", default=8, high=shapes.MOST_HEADS),
        o_rank=fields.count("o_lora_rank", default=1024, high=shapes.WIDEST),
    )
    return LayerPlan(
        mixer=mixer,
        ffn=experts,
        compressed=output,
        ffn_style=FfnStyle(moe_name="ffn", expert_names=("w1", "w3", "w2"), score_bias=not hashed),
        mixer_norms=("attn_norm",),
        ffn_norms=("ffn_norm",),
    )


def hyper_connections(add: Builder, hidden: int, mult: int) -> None:
    """The FP32 mixing matrices before and after each half of a layer that carries ``mult`` streams."""
    wide = catalogue.get("fp32")
    mix = (2 + mult) * mult
    for half in ("attn", "ffn"):
        add.plain(f"hc_{half}_fn", "hyper", mix, mult * hidden, fmt=wide)
        add.plain(f"hc_{half}_base", "hyper", mix, fmt=wide)
        add.plain(f"hc_{half}_scale", "hyper", 3, fmt=wide)


def _joining(add: Builder, hidden: int, mult: int) -> None:
    wide = catalogue.get("fp32")
    add.plain("hc_head_fn", "hyper", mult, mult * hidden, fmt=wide)
    add.plain("hc_head_base", "hyper", mult, fmt=wide)
    add.plain("hc_head_scale", "hyper", 1, fmt=wide)


def _mtp(layer: LayerPlan, index: int, hidden: int, mult: int) -> MtpPlan:
    def extra(add: Builder) -> None:
        add.linear("h_proj", "mtp.projection", hidden, hidden)
        hyper_connections(add, hidden, mult)
        _joining(add, hidden, mult)

    return MtpPlan(
        layers=(layer,),
        prefix=f"mtp.{index}.",
        layer_prefixes=(f"mtp.{index}.",),
        norms=("enorm", "hnorm", "norm"),
        projection="e_proj",
        joined=1,
        extra=extra,
    )
