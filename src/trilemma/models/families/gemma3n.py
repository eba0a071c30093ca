"""Gemma 3n: four residual streams (AltUp), low-rank side paths (LAuReL), an embedding for every layer, shared caches."""

from __future__ import annotations

from dataclasses import replace

from trilemma.models.architecture import DenseFfn
from trilemma.models.attention import AttentionStyle
from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.decoder import Decoder, LayerPlan
from trilemma.models.families import shapes
from trilemma.models.families.gemma import embed_every_layer, mix_layer_embedding
from trilemma.models.fields import Fields


def gemma3n(fields: Fields) -> Decoder:
    """The text part of Gemma 3n (transformers: models/gemma3n); the last layers read the caches of earlier ones.

    Its vision (MobileNet) and audio towers have no sizes in the configuration and are not counted.
    """
    layers = fields.layers()
    hidden = fields.count("hidden_size", default=2048, high=shapes.WIDEST)
    if not fields.has("num_attention_heads"):
        fields.values = {**fields.values, "num_attention_heads": 8}
    full = shapes.softmax(fields, kv_default=2, head_default=256)
    size = fields.count("sliding_window", default=512, high=2**40)
    kinds = fields.layer_types(layers, shapes.every(5, layers))
    windows = shapes.kinds(kinds, {"sliding_attention": size, "full_attention": None}, fields, "layer_types")
    shared = fields.count("num_kv_shared_layers", default=15, low=0, high=layers)
    widths = _widths(fields, layers)
    plans = [
        LayerPlan(
            mixer=replace(full, window=window, shares_cache=index >= layers - shared),
            ffn=DenseFfn(intermediate=widths[index]),
            attention=AttentionStyle(qk_norm="head"),
            mixer_norms=("input_layernorm", "post_attention_layernorm"),
            ffn_norms=("pre_feedforward_layernorm", "post_feedforward_layernorm"),
        )
        for index, window in enumerate(windows)
    ]
    streams = fields.count("altup_num_inputs", default=4, high=64)
    rank = fields.count("laurel_rank", default=64, high=2**14)
    narrow = fields.count("hidden_size_per_layer_input", default=256, high=2**16)
    rows = fields.count("vocab_size_per_layer_input", default=262144)
    fields.ignore(
        "activation_sparsity_pattern",
        "altup_active_idx",
        "altup_coef_clip",
        "altup_correct_scale",
        "altup_lr_multiplier",
    )

    def outside(add: Builder) -> None:
        embed_every_layer(add, rows=rows, layers=layers, narrow=narrow, hidden=hidden)
        for index in range(streams - 1):
            add.linear(f"altup_projections.{index}", "hyper", hidden, hidden)
            add.linear(f"altup_unembed_projections.{index}", "hyper", hidden, hidden)

    def extra(add: Builder, _: int) -> None:
        add.plain("altup.correct_output_scale", "hyper", hidden)
        add.plain("altup.correction_coefs.weight", "hyper", streams, streams)
        add.plain("altup.prediction_coefs.weight", "hyper", streams**2, streams)
        add.plain("altup.modality_router.weight", "hyper", streams, hidden)
        add.norm("altup.router_norm", hidden)
        add.linear("laurel.linear_left", "latent.down", rank, hidden)
        add.linear("laurel.linear_right", "latent.up", hidden, rank)
        add.norm("laurel.post_laurel_norm", hidden)
        mix_layer_embedding(add, narrow=narrow, hidden=hidden)

    return Decoder(
        hidden=hidden,
        vocab=shapes.vocabulary(fields, default=262400),
        layers=plans,
        max_positions=shapes.max_positions(fields),
        tied=shapes.tied(fields, default=True),
        prefix="model.language_model.",
        outside=outside,
        extra=extra,
    )


def _widths(fields: Fields, layers: int) -> list[int]:
    """``intermediate_size`` once or layer by layer."""
    if isinstance(fields.raw("intermediate_size"), list | tuple):
        stated = fields.counts("intermediate_size", low=1)
        return list(fields.per_layer("intermediate_size", layers, stated) or ())
    return [fields.count("intermediate_size", default=16384)] * layers
