"""Vision towers of the Qwen family, 2 to 3.5."""

from __future__ import annotations

from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.vision.parts import (
    layer_norm,
    projector,
    sizes,
    square_attention,
    three_matrices,
    two_matrices,
)
from trilemma.models.fields import Fields


def qwen2_vl(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Qwen2-VL (transformers: models/qwen2_vl): here ``hidden_size`` is the width of the text, ``embed_dim`` its own."""
    own = fields.count("embed_dim", default=1280, high=2**20)
    ratio = fields.count("mlp_ratio", default=4, high=64, quiet=True)
    fields.values = {**fields.values, "hidden_size": own, "intermediate_size": own * ratio}
    size = _qwen_common(add, fields)
    for index in range(size["layers"]):
        add.enter("vision", f"visual.blocks.{index}.")
        layer_norm(add, "norm1", own)
        layer_norm(add, "norm2", own)
        square_attention(add, "attn", own, size["heads"])
        two_matrices(add, "mlp", own, size["intermediate"])
    return _merger(add, size, text, norm="ln_q", norm_bias=True)


def qwen2_5_vl(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Qwen2.5-VL (transformers: models/qwen2_5_vl): RMS norms, gated blocks with bias, a merger of 2 by 2 patches."""
    fields.ignore("tokens_per_second")
    window = fields.count("window_size", default=112, high=2**14, quiet=True)
    whole = fields.counts("fullatt_block_indexes", high=4096)
    size = _qwen_common(add, fields)
    hidden = size["hidden"]
    size["window"], size["full_layers"] = (window // size["patch"]) ** 2, 4 if whole is None else len(whole)
    for index in range(size["layers"]):
        add.enter("vision", f"visual.blocks.{index}.")
        add.norm("norm1", hidden)
        add.norm("norm2", hidden)
        square_attention(add, "attn", hidden, size["heads"])
        three_matrices(add, "mlp", hidden, size["intermediate"], bias=True)
    out = fields.count("out_hidden_size", default=text, high=2**20, quiet=True)
    return _merger(add, size, out, norm="ln_q", norm_bias=False)


def qwen3_vl(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Qwen3-VL and Qwen3.5 (transformers: models/qwen3_vl): learned positions, further mergers at chosen depths."""
    old = "qwen3_5" not in f"{fields.family} {fields.text('model_type')}"
    deep = fields.counts("deepstack_visual_indexes", high=4096)
    if deep is None:
        deep = (8, 16, 24) if old else ()
        if old:
            fields.assume("deepstack_visual_indexes is not given; taken as 8, 16, 24, the default of qwen3_vl")
    size = _qwen_common(add, fields, patch=16, bias=True)
    hidden, rows = size["hidden"], fields.count("num_position_embeddings", default=2304, quiet=True)
    add.plain("pos_embed.weight", "vision.embedding", rows, hidden)
    for index in range(size["layers"]):
        add.enter("vision", f"visual.blocks.{index}.")
        layer_norm(add, "norm1", hidden)
        layer_norm(add, "norm2", hidden)
        square_attention(add, "attn", hidden, size["heads"])
        two_matrices(add, "mlp", hidden, size["intermediate"])
    out = fields.count("out_hidden_size", default=text, high=2**20, quiet=True)
    for number in range(len(deep)):
        wide = hidden * size["merge"] ** 2
        add.enter("vision", f"visual.deepstack_merger_list.{number}.")
        layer_norm(add, "norm", wide)
        projector(add, "linear_fc1", "linear_fc2", wide, wide, out)
    return {**_merger(add, size, out, norm="norm", norm_bias=True), "levels": 1 + len(deep)}


def _qwen_common(add: Builder, fields: Fields, *, patch: int = 14, bias: bool = False) -> dict[str, int]:
    size = sizes(fields, depth="depth", heads="num_heads", patch=patch)
    size["merge"] = fields.count("spatial_merge_size", default=2, high=64, quiet=True)
    frames = fields.count("temporal_patch_size", default=2, high=64, quiet=True)
    fields.ignore("tokens_per_second", "spatial_patch_size")
    add.enter("vision", "visual.")
    shape = (size["hidden"], size["channels"], frames, size["patch"], size["patch"])
    add.plain("patch_embed.proj.weight", "vision.embedding", *shape)
    if bias:
        add.plain("patch_embed.proj.bias", "vision.embedding", size["hidden"])
    return size


def _merger(add: Builder, size: dict[str, int], out: int, *, norm: str, norm_bias: bool) -> dict[str, int]:
    wide = size["hidden"] * size["merge"] ** 2
    add.enter("vision", "visual.merger.")
    add.norm(norm, size["hidden"], bias=norm_bias)
    projector(add, "mlp.0", "mlp.2", wide, wide, out)
    return {**size, "out": out}
