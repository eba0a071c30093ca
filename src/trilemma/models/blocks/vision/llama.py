"""Vision towers of Llama 3.2 Vision and Llama 4."""

from __future__ import annotations

from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.vision.parts import (
    layer_norm,
    linear,
    projector,
    sizes,
    square_attention,
    two_matrices,
)
from trilemma.models.fields import Fields


def llama4(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Llama 4's tower (transformers: models/llama4): pixel shuffle, an adapter of two matrices, one projection."""
    fields.ignore(
        "vision_output_dim", "multi_modal_projector_bias", "projector_dropout", "rope_theta", "vision_feature_layer"
    )
    size = sizes(fields)
    hidden, side = size["hidden"], fields.count("image_size", default=448, high=2**14, quiet=True)
    size["image"] = side
    add.enter("vision", "vision_model.")
    add.plain("patch_embedding.linear.weight", "vision.embedding", hidden, size["channels"] * size["patch"] ** 2)
    add.plain("class_embedding", "vision.embedding", hidden)
    add.plain("positional_embedding_vlm", "vision.embedding", (side // size["patch"]) ** 2 + 1, hidden)
    for name in ("layernorm_pre", "layernorm_post"):
        layer_norm(add, name, hidden)
    for index in range(size["layers"]):
        add.enter("vision", f"vision_model.model.layers.{index}.")
        layer_norm(add, "input_layernorm", hidden)
        layer_norm(add, "post_attention_layernorm", hidden)
        square_attention(add, "self_attn", hidden, size["heads"])
        two_matrices(add, "mlp", hidden, size["intermediate"])
    inner = fields.count("projector_input_dim", default=4096, high=2**20, quiet=True)
    out = fields.count("projector_output_dim", default=inner, high=2**20, quiet=True)
    ratio = fields.number("pixel_shuffle_ratio", default=0.5, low=0.01, high=1.0)
    add.enter("vision", "vision_model.vision_adapter.")
    projector(add, "mlp.fc1", "mlp.fc2", int(hidden / ratio**2), inner, out, bias=False)
    add.enter("vision", "multi_modal_projector.")
    linear(add, "linear_1", text, out, shard="column", units=text, bias=False)
    return {**size, "out": text}


def mllama(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Llama 3.2 Vision's tower (transformers: models/mllama): a local and a gated global stack, embeddings of tiles."""
    fields.ignore("projection_layers", "attention_heads", "norm_eps", "supported_aspect_ratios")
    size = sizes(fields)
    hidden = size["hidden"]
    size["intermediate"] = fields.count("intermediate_size", default=4 * hidden, quiet=True)
    side, tiles = (
        fields.count("image_size", default=560, high=2**14, quiet=True),
        fields.count("max_num_tiles", default=4, high=64, quiet=True),
    )
    patches = (side // size["patch"]) ** 2 + 1
    ratios = fields.count("max_aspect_ratio_id", default=8, high=4096, quiet=True) + 1
    taken = fields.counts("intermediate_layers_indices", high=4096)
    layers_out = len(taken) if taken is not None else 5
    add.enter("vision", "vision_model.")
    add.plain("patch_embedding.weight", "vision.embedding", hidden, size["channels"], size["patch"], size["patch"])
    add.plain("class_embedding", "vision.embedding", hidden)
    add.plain("gated_positional_embedding.embedding", "vision.embedding", patches, hidden)
    add.plain("gated_positional_embedding.tile_embedding.weight", "vision.embedding", ratios, tiles * patches * hidden)
    add.plain("gated_positional_embedding.gate", "vision.embedding", 1)
    for name in ("pre_tile_positional_embedding", "post_tile_positional_embedding"):
        add.plain(f"{name}.embedding.weight", "vision.embedding", ratios, tiles * hidden)
        add.plain(f"{name}.gate", "vision.embedding", 1)
    for name in ("layernorm_pre", "layernorm_post"):
        layer_norm(add, name, hidden)
    further = fields.count("num_global_layers", default=8, low=0, high=1024, quiet=True)
    for stack, layers in (("transformer", size["layers"]), ("global_transformer", further)):
        for index in range(layers):
            add.enter("vision", f"vision_model.{stack}.layers.{index}.")
            layer_norm(add, "input_layernorm", hidden)
            layer_norm(add, "post_attention_layernorm", hidden)
            square_attention(add, "self_attn", hidden, size["heads"], bias=False)
            two_matrices(add, "mlp", hidden, size["intermediate"])
            if stack == "global_transformer":
                add.plain("gate_attn", "vision.embedding", 1)
                add.plain("gate_ffn", "vision.embedding", 1)
    width = fields.count("vision_output_dim", default=hidden * (layers_out + 1), high=2**20, quiet=True)
    add.enter("vision")
    linear(add, "multi_modal_projector", text, width)
    return {**size, "image": side, "tiles": tiles, "out": text}
