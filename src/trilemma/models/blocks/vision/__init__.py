"""Tensors of vision towers and their projectors.

vLLM cuts towers by heads and columns by default (``mm_encoder_tp_mode`` "weights": vllm/config/multimodal.py); patch
embeddings, positions and norms stay whole. Towers that it takes from transformers unchanged (Gemma 4) are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trilemma.models.blocks.builder import Builder
from trilemma.models.blocks.vision import encoders, llama, qwen
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
        text.leave_out(f"the vision tower ({kind or 'not named'}) is not counted: its sizes are not known")
        return {}
    add.enter("vision")
    return tower(add, fields, hidden)


_TOWERS: dict[str, Tower] = {
    "internvl_vision": encoders.intern_vit,
    "intern_vit_6b": encoders.intern_vit,
    "internvl": encoders.intern_vit,
    "internvl_chat": encoders.intern_vit,
    "qwen2_vl": qwen.qwen2_vl,
    "qwen2_5_vl": qwen.qwen2_5_vl,
    "qwen3_vl": qwen.qwen3_vl,
    "qwen3_vl_moe": qwen.qwen3_vl,
    "qwen3_vl_moe_text": qwen.qwen3_vl,
    "qwen3_omni_moe": qwen.qwen3_vl,
    "qwen3_omni_moe_vision_encoder": qwen.qwen3_vl,
    "qwen3_5": qwen.qwen3_vl,
    "qwen3_5_moe": qwen.qwen3_vl,
    "qwen3_5_text": qwen.qwen3_vl,
    "qwen3_5_moe_text": qwen.qwen3_vl,
    "qwen3_5_vision": qwen.qwen3_vl,
    "gemma3": encoders.siglip,
    "llama4": llama.llama4,
    "llama4_vision_model": llama.llama4,
    "mllama": llama.mllama,
    "mllama_vision_model": llama.mllama,
    "pixtral": encoders.pixtral,
    "moonvit": encoders.moonvit,
    "kimi_vl": encoders.moonvit,
    "kimi_k25": encoders.moonvit,
    "gemma4": encoders.gemma4,
    "gemma4_vision": encoders.gemma4,
}
