"""Tensors of vision towers and their projectors.

vLLM cuts towers by heads and columns by default (``mm_encoder_tp_mode`` "weights": vllm/config/multimodal.py); patch
embeddings, positions and norms stay whole. Towers that it takes from transformers unchanged (Gemma 4) are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trilemma.models.architecture import Shard
from trilemma.models.blocks.builder import Builder
from trilemma.models.fields import Fields

#: Adds a tower from (builder, vision part, text width) and returns its sizes.
Tower = Callable[[Builder, Fields, int], dict[str, int]]


def add_vision(add: Builder, fields: Fields | None, text: Fields, *, hidden: int) -> Mapping[str, int]:
    """Add the tower that ``fields`` describes and return its sizes; an unknown tower leaves its keys as unknown."""
    if fields is None:
        return {}
    kind = fields.text("model_type")
    tower = _TOWERS.get(kind) or _TOWERS.get(fields.family)
    if tower is None or not any(fields.has(key) for key in ("depth", "num_hidden_layers", "vt_num_hidden_layers")):
        fields.used.clear()
        text.assume(f"the vision tower ({kind or 'not named'}) is not counted: its sizes are not known")
        return {}
    add.enter("vision")
    return tower(add, fields, hidden)


def _linear(
    add: Builder, name: str, out: int, width: int, *, shard: Shard = "none", units: int = 1, bias: bool = True
) -> None:
    add.linear(name, "vision.linear", out, width, shard=shard, units=units, bias=bias)


def _layer_norm(add: Builder, name: str, size: int) -> None:
    add.norm(name, size, bias=True)


def _attention(add: Builder, name: str, hidden: int, heads: int, *, bias: bool = True, sharded: bool = True) -> None:
    """Four square matrices, cut by heads."""
    for part in ("q_proj", "k_proj", "v_proj"):
        _linear(add, f"{name}.{part}", hidden, hidden, shard="column" if sharded else "none", units=heads, bias=bias)
    _linear(add, f"{name}.o_proj", hidden, hidden, shard="row" if sharded else "none", units=heads, bias=bias)


def _two_matrices(add: Builder, name: str, hidden: int, size: int, *, bias: bool = True) -> None:
    _linear(add, f"{name}.fc1", size, hidden, shard="column", units=size, bias=bias)
    _linear(add, f"{name}.fc2", hidden, size, shard="row", units=size, bias=bias)


def _three_matrices(add: Builder, name: str, hidden: int, size: int, *, bias: bool, sharded: bool = True) -> None:
    for part in ("gate_proj", "up_proj"):
        _linear(add, f"{name}.{part}", size, hidden, shard="column" if sharded else "none", units=size, bias=bias)
    _linear(add, f"{name}.down_proj", hidden, size, shard="row" if sharded else "none", units=size, bias=bias)


def _sizes(
    fields: Fields, *, depth: str = "num_hidden_layers", heads: str = "num_attention_heads", patch: int = 14,
    head_default: int = 16,
) -> dict[str, int]:  # fmt: skip
    """The sizes that every tower has: layers, hidden, heads, intermediate, patch, channels."""
    return {
        "layers": fields.layers(depth),
        "hidden": fields.count("hidden_size", "embed_dim", high=2**20),
        "heads": fields.count(heads, default=head_default, high=2**14, quiet=True),
        "intermediate": fields.count("intermediate_size", default=4304, quiet=True),
        "patch": _first(fields, "patch_size", patch),
        "channels": fields.count("in_channels", "in_chans", "num_channels", default=3, high=64, quiet=True),
    }


def qwen2_vl(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Qwen2-VL (transformers: models/qwen2_vl): here ``hidden_size`` is the width of the text, ``embed_dim`` its own."""
    own = fields.count("embed_dim", default=1280, high=2**20)
    ratio = fields.count("mlp_ratio", default=4, high=64, quiet=True)
    fields.values = {**fields.values, "hidden_size": own, "intermediate_size": own * ratio}
    size = _qwen_common(add, fields)
    for index in range(size["layers"]):
        add.enter("vision", f"visual.blocks.{index}.")
        _layer_norm(add, "norm1", own)
        _layer_norm(add, "norm2", own)
        _attention(add, "attn", own, size["heads"])
        _two_matrices(add, "mlp", own, size["intermediate"])
    return _merger(add, size, text, norm="ln_q", norm_bias=True)


def qwen2_5_vl(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Qwen2.5-VL (transformers: models/qwen2_5_vl): RMS norms, gated blocks with bias, a merger of 2 by 2 patches."""
    fields.ignore("window_size", "fullatt_block_indexes", "tokens_per_second")
    size = _qwen_common(add, fields)
    hidden = size["hidden"]
    for index in range(size["layers"]):
        add.enter("vision", f"visual.blocks.{index}.")
        add.norm("norm1", hidden)
        add.norm("norm2", hidden)
        _attention(add, "attn", hidden, size["heads"])
        _three_matrices(add, "mlp", hidden, size["intermediate"], bias=True)
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
        _layer_norm(add, "norm1", hidden)
        _layer_norm(add, "norm2", hidden)
        _attention(add, "attn", hidden, size["heads"])
        _two_matrices(add, "mlp", hidden, size["intermediate"])
    out = fields.count("out_hidden_size", default=text, high=2**20, quiet=True)
    for number in range(len(deep)):
        wide = hidden * size["merge"] ** 2
        add.enter("vision", f"visual.deepstack_merger_list.{number}.")
        _layer_norm(add, "norm", wide)
        _projector(add, "linear_fc1", "linear_fc2", wide, wide, out)
    return _merger(add, size, out, norm="norm", norm_bias=True)


def _qwen_common(add: Builder, fields: Fields, *, patch: int = 14, bias: bool = False) -> dict[str, int]:
    size = _sizes(fields, depth="depth", heads="num_heads", patch=patch)
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
    _projector(add, "mlp.0", "mlp.2", wide, wide, out)
    return {**size, "out": out}


def _projector(add: Builder, first: str, second: str, width: int, inner: int, out: int, *, bias: bool = True) -> None:
    _linear(add, first, inner, width, shard="column", units=inner, bias=bias)
    _linear(add, second, out, inner, shard="row", units=inner, bias=bias)


def siglip(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """SigLIP as in Gemma 3 (transformers: models/siglip, models/gemma3): one projection after average pooling."""
    fields.ignore("vision_use_head")
    size = _sizes(fields)
    hidden, side = size["hidden"], fields.count("image_size", default=896, high=2**14, quiet=True)
    size["image"] = side
    add.enter("vision", "vision_tower.vision_model.")
    _conv_patches(add, size, bias=True)
    add.plain("embeddings.position_embedding.weight", "vision.embedding", (side // size["patch"]) ** 2, hidden)
    for index in range(size["layers"]):
        add.enter("vision", f"vision_tower.vision_model.encoder.layers.{index}.")
        _layer_norm(add, "layer_norm1", hidden)
        _layer_norm(add, "layer_norm2", hidden)
        _attention(add, "self_attn", hidden, size["heads"])
        _two_matrices(add, "mlp", hidden, size["intermediate"])
    add.enter("vision", "vision_tower.vision_model.")
    _layer_norm(add, "post_layernorm", hidden)
    add.enter("vision", "multi_modal_projector.")
    add.plain("mm_input_projection_weight", "vision.linear", hidden, text)
    add.norm("mm_soft_emb_norm", hidden)
    return {**size, "out": text}


def _conv_patches(add: Builder, size: dict[str, int], *, bias: bool) -> None:
    shape = (size["hidden"], size["channels"], size["patch"], size["patch"])
    add.plain("embeddings.patch_embedding.weight", "vision.embedding", *shape)
    if bias:
        add.plain("embeddings.patch_embedding.bias", "vision.embedding", size["hidden"])


def llama4(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Llama 4's tower (transformers: models/llama4): pixel shuffle, an adapter of two matrices, one projection."""
    fields.ignore(
        "vision_output_dim", "multi_modal_projector_bias", "projector_dropout", "rope_theta", "vision_feature_layer"
    )
    size = _sizes(fields)
    hidden, side = size["hidden"], fields.count("image_size", default=448, high=2**14, quiet=True)
    size["image"] = side
    add.enter("vision", "vision_model.")
    add.plain("patch_embedding.linear.weight", "vision.embedding", hidden, size["channels"] * size["patch"] ** 2)
    add.plain("class_embedding", "vision.embedding", hidden)
    add.plain("positional_embedding_vlm", "vision.embedding", (side // size["patch"]) ** 2 + 1, hidden)
    for name in ("layernorm_pre", "layernorm_post"):
        _layer_norm(add, name, hidden)
    for index in range(size["layers"]):
        add.enter("vision", f"vision_model.model.layers.{index}.")
        _layer_norm(add, "input_layernorm", hidden)
        _layer_norm(add, "post_attention_layernorm", hidden)
        _attention(add, "self_attn", hidden, size["heads"])
        _two_matrices(add, "mlp", hidden, size["intermediate"])
    inner = fields.count("projector_input_dim", default=4096, high=2**20, quiet=True)
    out = fields.count("projector_output_dim", default=inner, high=2**20, quiet=True)
    ratio = fields.number("pixel_shuffle_ratio", default=0.5, low=0.01, high=1.0)
    add.enter("vision", "vision_model.vision_adapter.")
    _projector(add, "mlp.fc1", "mlp.fc2", int(hidden / ratio**2), inner, out, bias=False)
    add.enter("vision", "multi_modal_projector.")
    _linear(add, "linear_1", text, out, shard="column", units=text, bias=False)
    return {**size, "out": text}


def mllama(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Llama 3.2 Vision's tower (transformers: models/mllama): a local and a gated global stack, embeddings of tiles."""
    fields.ignore("projection_layers", "attention_heads", "norm_eps", "supported_aspect_ratios")
    size = _sizes(fields)
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
        _layer_norm(add, name, hidden)
    further = fields.count("num_global_layers", default=8, low=0, high=1024, quiet=True)
    for stack, layers in (("transformer", size["layers"]), ("global_transformer", further)):
        for index in range(layers):
            add.enter("vision", f"vision_model.{stack}.layers.{index}.")
            _layer_norm(add, "input_layernorm", hidden)
            _layer_norm(add, "post_attention_layernorm", hidden)
            _attention(add, "self_attn", hidden, size["heads"], bias=False)
            _two_matrices(add, "mlp", hidden, size["intermediate"])
            if stack == "global_transformer":
                add.plain("gate_attn", "vision.embedding", 1)
                add.plain("gate_ffn", "vision.embedding", 1)
    width = fields.count("vision_output_dim", default=hidden * (layers_out + 1), high=2**20, quiet=True)
    add.enter("vision")
    _linear(add, "multi_modal_projector", text, width)
    return {**size, "image": side, "tiles": tiles, "out": text}


def pixtral(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Pixtral (transformers: models/pixtral, models/mistral3): RMS norms, gated blocks, a merger in Mistral 3."""
    size = _sizes(fields)
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
        _attention(add, "attention", hidden, size["heads"], bias=False)
        _three_matrices(add, "feed_forward", hidden, size["intermediate"], bias=False)
    add.enter("vision", "multi_modal_projector.")
    merged = fields.family == "mistral3"
    if merged:
        _linear(add, "patch_merger.merging_layer", hidden, 4 * hidden, bias=False)
        add.norm("norm", hidden)
    _projector(add, "linear_1", "linear_2", hidden, text, text, bias=not merged)
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
        _layer_norm(add, "norm0", hidden)
        _layer_norm(add, "norm1", hidden)
        _attention(add, "attn", hidden, heads)
        _two_matrices(add, "mlp", hidden, inner)
    add.enter("vision", "vision_tower.encoder.")
    _layer_norm(add, "final_layernorm", hidden)
    add.enter("vision", "mm_projector.")
    _layer_norm(add, "pre_norm", hidden)
    _projector(add, "linear_1", "linear_2", 4 * hidden, 4 * hidden, text)
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "intermediate": inner, "patch": patch, "channels": 3, "merge": 2,
        "out": text,
    }  # fmt: skip


def gemma4(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """Gemma 4's tower (transformers: models/gemma4): gated blocks, norms on q and k, tables of positions; whole on every rank."""
    size = _sizes(fields, patch=16)
    hidden, heads = size["hidden"], size["heads"]
    dim = fields.count("head_dim", default=max(hidden // heads, 1), high=2**14, quiet=True)
    rows = fields.count("position_embedding_size", default=10240, quiet=True)
    size["pooling"] = fields.count("pooling_kernel_size", default=3, high=64, quiet=True)
    fields.ignore("global_head_dim", "num_key_value_heads", "max_position_embeddings", "attention_bias")
    add.enter("vision", "model.vision_tower.patch_embedder.")
    _linear(add, "input_proj", hidden, size["channels"] * size["patch"] ** 2, bias=False)
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
            _linear(add, f"self_attn.{part}", heads * dim, hidden, bias=False)
        _linear(add, "self_attn.o_proj", hidden, heads * dim, bias=False)
        add.norm("self_attn.q_norm", dim)
        add.norm("self_attn.k_norm", dim)
        _three_matrices(add, "mlp", hidden, size["intermediate"], bias=False, sharded=False)
    add.enter("vision", "model.embed_vision.")
    _linear(add, "embedding_projection", text, hidden, bias=False)
    return {**size, "out": text}


def intern_vit(add: Builder, fields: Fields, text: int) -> dict[str, int]:
    """InternViT of InternVL (transformers: models/internvl): layer scales, a pixel shuffle of 2 by 2, two matrices."""
    size = _sizes(fields)
    hidden, side = size["hidden"], _first(fields, "image_size", 448)
    size["patch"] = _first(fields, "patch_size", 14)
    fields.ignore("qk_normalization", "qkv_bias", "use_qk_norm", "attention_bias", "norm_type", "drop_path_rate")
    fields.ignore("use_mask_token", "use_mean_pooling", "use_absolute_position_embeddings", "layer_scale_init_value")
    if fields.values.get("qk_normalization") is True or fields.values.get("use_qk_norm") is True:
        fields.assume("norms on q and k of the vision tower are not counted")
    add.enter("vision", "vision_model.")
    _conv_patches(add, size, bias=True)
    add.plain("embeddings.class_embedding", "vision.embedding", hidden)
    add.plain("embeddings.position_embedding", "vision.embedding", (side // size["patch"]) ** 2 + 1, hidden)
    for index in range(size["layers"]):
        add.enter("vision", f"vision_model.encoder.layers.{index}.")
        for name in ("norm1", "norm2"):
            _layer_norm(add, name, hidden)
        for name in ("ls1", "ls2"):
            add.plain(name, "vision.norm", hidden)
        _attention(add, "attn", hidden, size["heads"])
        _two_matrices(add, "mlp", hidden, size["intermediate"])
    wide = 4 * hidden
    add.enter("vision", "mlp1.")
    _layer_norm(add, "0", wide)
    _projector(add, "1", "3", wide, text, text)
    return {**size, "image": side, "merge": 2, "out": text}


def _first(fields: Fields, key: str, default: int) -> int:
    """A size stated once or as a pair of equal ones."""
    value = fields.raw(key)
    if isinstance(value, list | tuple):
        pair = fields.counts(key, low=1, high=2**14)
        return pair[0] if pair else default
    return fields.count(key, default=default, high=2**14, quiet=True)


_TOWERS: dict[str, Tower] = {
    "internvl_vision": intern_vit,
    "intern_vit_6b": intern_vit,
    "internvl": intern_vit,
    "internvl_chat": intern_vit,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": qwen3_vl,
    "qwen3_vl_moe_text": qwen3_vl,
    "qwen3_omni_moe": qwen3_vl,
    "qwen3_omni_moe_vision_encoder": qwen3_vl,
    "qwen3_5": qwen3_vl,
    "qwen3_5_moe": qwen3_vl,
    "qwen3_5_text": qwen3_vl,
    "qwen3_5_moe_text": qwen3_vl,
    "qwen3_5_vision": qwen3_vl,
    "gemma3": siglip,
    "llama4": llama4,
    "llama4_vision_model": llama4,
    "mllama": mllama,
    "mllama_vision_model": mllama,
    "pixtral": pixtral,
    "moonvit": moonvit,
    "kimi_vl": moonvit,
    "kimi_k25": moonvit,
    "gemma4": gemma4,
    "gemma4_vision": gemma4,
}
