"""Model families: which reader understands which ``model_type``.

A reader is one function ``(Fields) -> Decoder`` in a module of its kin; this table imports a module only when one of its
types is read. Adding a family: see docs/adding-a-model-family.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from trilemma.models.blocks.decoder import Decoder
from trilemma.models.fields import Fields

Reader = Callable[[Fields], Decoder]

_MODULES: dict[str, dict[str, str]] = {
    "llama": {
        "llama": "llama",
        "mistral": "llama",
        "ministral": "llama",
        "mixtral": "mixtral",
    },
    "qwen": {
        "qwen2": "qwen2",
        "qwen3": "qwen3",
        "qwen2_moe": "qwen2_moe",
        "qwen3_moe": "qwen3_moe",
    },
    "deepseek": {
        "deepseek_v2": "deepseek_v2",
        "deepseek_v3": "deepseek_v3",
        "deepseek_v32": "deepseek_v3",
        "kimi_k2": "deepseek_v3",
        "glm_moe_dsa": "glm_moe_dsa",
    },
}
_READERS = {kind: (module, function) for module, kinds in _MODULES.items() for kind, function in kinds.items()}


def known() -> tuple[str, ...]:
    """Every ``model_type`` that has a reader."""
    return tuple(_READERS)


def find(model_type: str) -> Reader | None:
    """The reader of ``model_type``, or None."""
    entry = _READERS.get(model_type)
    if entry is None:
        return None
    module, function = entry
    return cast(Reader, getattr(importlib.import_module(f"trilemma.models.families.{module}"), function))
