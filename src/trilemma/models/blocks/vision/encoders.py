"""Vision encoders that models of several makers use: SigLIP, Pixtral, MoonViT, InternViT, Gemma 4."""

from __future__ import annotations

from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.vision.parts import (
    conv_patches,
    first_of,
    layer_norm,
    linear,
    projector,
    sizes,
    square_attention,
    three_matrices,
    two_matrices,
)
from trilemma.models.fields import Fields


def siglip(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """SigLIP as in Gemma 3 (transformers: models/siglip, models/gemma3): one projection after average pooling."""
    fields.ignore("vision_use_head")
    size = sizes(fields)
    hidden, side = size["hidden"], fields.count("image_size", default=896, high=2**14, quiet=True)
    size["image"] = side
    add.enter("vision", "vision_tower.vision_model.")
    conv_patches(add, size, bias=True)
    add.plain("embeddings.position_embedding.weight", "vision.embedding", (side // size["patch"]) ** 2, hidden)
    for index in range(size["layers"]):
        add.enter("vision", f"vision_tower.vision_model.encoder.layers.{index}.")
        layer_norm(add, "layer_norm1", hidden)
        layer_norm(add, "layer_norm2", hidden)
        square_attention(add, "self_attn", hidden, size["heads"])
        two_matrices(add, "mlp", hidden, size["intermediate"])
    add.enter("vision", "vision_tower.vision_model.")
    layer_norm(add, "post_layernorm", hidden)
    add.enter("vision", "multi_modal_projector.")
    add.plain("mm_input_projection_weight", "vision.linear", hidden, text)
    add.norm("mm_soft_emb_norm", hidden)
    return {**size, "out": text}


def pixtral(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Pixtral (transformers: models/pixtral, models/mistral3): RMS norms, gated blocks, a merger in Mistral 3."""
    size = sizes(fields)
    hidden = size["hidden"]
    fields.ignore(
        "head_dim", "image_size", "rope_theta", "mm_projector_id", "adapter_bias", "add_pre_mm_projector_layer_norm"
    )
    add.enter("vision", "vision_tower.")
    add.plain("patch_conv.weight", "vision.embedding", hidden, size["channels"], size["patch"], size["patch"])
    add.norm("ln_pre", hidden)
    for index in range(size["layers"]):
        add.enter("vision", f"vision_tower.transformer.layers.{index}.")
        add.norm("attention_norm", hidden)
        add.norm("ffn_norm", hidden)
        square_attention(add, "attention", hidden, size["heads"], bias=False)
        three_matrices(add, "feed_forward", hidden, size["intermediate"], bias=False)
    add.enter("vision", "multi_modal_projector.")
    merged = fields.family == "mistral3"
    if merged:
        linear(add, "patch_merger.merging_layer", hidden, 4 * hidden, bias=False)
        add.norm("norm", hidden)
    projector(add, "linear_1", "linear_2", hidden, text, text, bias=not merged)
    return {**size, "merge": 2 if merged else 1, "out": text}


def moonvit(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """MoonViT of Kimi-VL and Kimi-K2.5 (remote code; vllm/model_executor/models/moonvit.py), two spellings of its fields."""
    mark = "vt_" if fields.has("vt_num_hidden_layers") else ""
    fields.ignore(
        "merge_kernel_size", "merge_type", "mm_projector_type", "pos_emb_type", "projector_hidden_act", "text_hidden_size",
        "projector_ln_eps", "video_attn_type", "init_pos_emb_time",
    )  # fmt: skip
    layers = fields.layers(f"{mark}num_hidden_layers")
    hidden = fields.count(f"{mark}hidden_size", default=1152, high=2**20)
    heads = fields.count(f"{mark}num_attention_heads", default=16, high=2**14)
    inner = fields.count(f"{mark}intermediate_size", default=4304)
    patch = fields.count("patch_size", default=14, high=2**12, quiet=True)
    high = fields.count("init_pos_emb_height", default=64, high=2**12, quiet=True)
    wide = fields.count("init_pos_emb_width", default=64, high=2**12, quiet=True)
    fields.ignore("mm_hidden_size")
    add.enter("vision", "vision_tower.")
    add.plain("patch_embed.proj.weight", "vision.embedding", hidden, 3, patch, patch)
    add.plain("patch_embed.proj.bias", "vision.embedding", hidden)
    add.plain("patch_embed.pos_emb.weight", "vision.embedding", high, wide, hidden)
    for index in range(layers):
        add.enter("vision", f"vision_tower.encoder.blocks.{index}.")
        layer_norm(add, "norm0", hidden)
        layer_norm(add, "norm1", hidden)
        square_attention(add, "attn", hidden, heads)
        two_matrices(add, "mlp", hidden, inner)
    add.enter("vision", "vision_tower.encoder.")
    layer_norm(add, "final_layernorm", hidden)
    add.enter("vision", "mm_projector.")
    layer_norm(add, "pre_norm", hidden)
    projector(add, "linear_1", "linear_2", 4 * hidden, 4 * hidden, text)
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "intermediate": inner, "patch": patch, "channels": 3, "merge": 2,
        "out": text,
    }  # fmt: skip


def intern_vit(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """InternViT of InternVL (transformers: models/internvl): layer scales, a pixel shuffle of 2 by 2, two matrices."""
    size = sizes(fields)
    hidden, side = size["hidden"], first_of(fields, "image_size", 448)
    size["patch"] = first_of(fields, "patch_size", 14)
    fields.ignore("qk_normalization", "qkv_bias", "use_qk_norm", "attention_bias", "norm_type", "drop_path_rate")
    fields.ignore("use_mask_token", "use_mean_pooling", "use_absolute_position_embeddings", "layer_scale_init_value")
    if fields.values.get("qk_normalization") is True or fields.values.get("use_qk_norm") is True:
        fields.assume("norms on q and k of the vision tower are not counted")
    add.enter("vision", "vision_model.")
    conv_patches(add, size, bias=True)
    add.plain("embeddings.class_embedding", "vision.embedding", hidden)
    add.plain("embeddings.position_embedding", "vision.embedding", (side // size["patch"]) ** 2 + 1, hidden)
    for index in range(size["layers"]):
        add.enter("vision", f"vision_model.encoder.layers.{index}.")
        for name in ("norm1", "norm2"):
            layer_norm(add, name, hidden)
        for name in ("ls1", "ls2"):
            add.plain(name, "vision.norm", hidden)
        square_attention(add, "attn", hidden, size["heads"])
        two_matrices(add, "mlp", hidden, size["intermediate"])
    wide = 4 * hidden
    add.enter("vision", "mlp1.")
    layer_norm(add, "0", wide)
    projector(add, "1", "3", wide, text, text)
    return {**size, "image": side, "merge": 2, "out": text}


def gemma4(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Gemma 4's tower (transformers: models/gemma4): gated blocks, norms on q and k, tables of positions; whole on every rank."""
    size = sizes(fields, patch=16)
    hidden, heads = size["hidden"], size["heads"]
    dim = fields.count("head_dim", default=max(hidden // heads, 1), high=2**14, quiet=True)
    rows = fields.count("position_embedding_size", default=10240, quiet=True)
    size["pooling"] = fields.count("pooling_kernel_size", default=3, high=64, quiet=True)
    fields.ignore("global_head_dim", "num_key_value_heads", "max_position_embeddings", "attention_bias")
    add.enter("vision", "model.vision_tower.patch_embedder.")
    linear(add, "input_proj", hidden, size["channels"] * size["patch"] ** 2, bias=False)
    add.plain("position_embedding_table", "vision.embedding", 2, rows, hidden)
    for index in range(size["layers"]):
        add.enter("vision", f"model.vision_tower.encoder.layers.{index}.")
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ):
            add.norm(name, hidden)
        for part in ("q_proj", "k_proj", "v_proj"):
            linear(add, f"self_attn.{part}", heads * dim, hidden, bias=False)
        linear(add, "self_attn.o_proj", hidden, heads * dim, bias=False)
        add.norm("self_attn.q_norm", dim)
        add.norm("self_attn.k_norm", dim)
        three_matrices(add, "mlp", hidden, size["intermediate"], bias=False, sharded=False)
    add.enter("vision", "model.embed_vision.")
    linear(add, "embedding_projection", text, hidden, bias=False)
    return {**size, "out": text}
