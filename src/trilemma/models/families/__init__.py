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

FamilyReader = Callable[[Fields], Decoder]

_MODULES: dict[str, dict[str, str]] = {
    "llama": {
        "llama": "llama",
        "mistral": "llama",
        "ministral": "llama",
        "ministral3": "llama",
        "mixtral": "mixtral",
        "yi": "llama",
        "aquila": "llama",
        "baichuan": "llama",
        "internlm": "llama",
        "internlm2": "llama",
        "internlm3": "internlm3",
        "smollm3": "tied_llama",
        "ernie4_5": "tied_llama",
        "minicpm": "tied_llama",
        "hunyuan_v1_dense": "hunyuan_dense",
        "seed_oss": "seed_oss",
        "stablelm": "stablelm",
        "exaone": "exaone",
        "exaone4": "exaone4",
        "arcee": "arcee",
        "apertus": "apertus",
        "nemotron": "nemotron",
        "qwen": "qwen",
    },
    "qwen": {
        "qwen2": "qwen2",
        "qwen2_vl": "qwen2",
        "qwen2_vl_text": "qwen2",
        "qwen2_5_vl": "qwen2",
        "qwen2_5_vl_text": "qwen2",
        "qwen3": "qwen3",
        "qwen3_vl": "qwen3",
        "qwen3_vl_text": "qwen3",
        "qwen2_moe": "qwen2_moe",
        "qwen3_moe": "qwen3_moe",
        "qwen3_vl_moe": "qwen3_moe",
        "qwen3_vl_moe_text": "qwen3_moe",
        "qwen3_omni_moe_text": "qwen3_moe",
    },
    "qwen_hybrid": {
        "qwen3_next": "qwen3_next",
        "qwen3_5": "qwen3_5",
        "qwen3_5_text": "qwen3_5",
        "qwen3_5_moe": "qwen3_5_moe",
        "qwen3_5_moe_text": "qwen3_5_moe",
    },
    "deepseek": {
        "deepseek_v2": "deepseek_v2",
        "deepseek_v3": "deepseek_v3",
        "deepseek_v32": "deepseek_v3",
        "kimi_k2": "deepseek_v3",
        "kimi_k25": "deepseek_v3",
        "kimi_vl": "kimi_vl",
        "glm_moe_dsa": "glm_moe_dsa",
        "glm4_moe_lite": "glm_moe_dsa",
    },
    "deepseek_v4": {"deepseek_v4": "deepseek_v4", "deepseek_ref": "deepseek_v4"},
    "gemma": {
        "gemma": "gemma",
        "gemma2": "gemma2",
        "gemma3": "gemma3",
        "gemma3_text": "gemma3",
        "gemma4": "gemma4",
        "gemma4_text": "gemma4",
        "gemma4_unified": "gemma4",
    },
    "gemma3n": {"gemma3n": "gemma3n", "gemma3n_text": "gemma3n"},
    "llama4": {"llama4": "llama4", "llama4_text": "llama4", "mllama": "mllama", "mllama_text_model": "mllama"},
    "mimo": {"mimo": "mimo", "mimo_v2_flash": "mimo_v2", "mimo_v2": "mimo_v2"},
    "nemotron": {"nemotron-nas": "nemotron_nas", "deci": "nemotron_nas", "nemotron_h": "nemotron_h"},
    "gpt_oss": {"gpt_oss": "gpt_oss"},
    "minimax": {
        "minimax_m2": "minimax_m2",
        "minimax_text_01": "minimax_text",
        "minimax_m1": "minimax_text",
        "MiniMaxText01": "minimax_text",
    },
    "phi": {"phi": "phi", "phi3": "phi3", "phimoe": "phimoe"},
    "granite": {
        "granite": "granite",
        "granitemoe": "granite_moe",
        "granitemoeshared": "granite_moe",
        "granitemoehybrid": "granite_hybrid",
        "bamba": "bamba",
    },
    "classic": {
        "gpt2": "gpt2",
        "gpt_bigcode": "gpt_bigcode",
        "gptj": "gptj",
        "gpt_neox": "gpt_neox",
        "opt": "opt",
        "bloom": "bloom",
        "falcon": "falcon",
        "mpt": "mpt",
        "starcoder2": "starcoder2",
    },
    "encoders": {
        "bert": "bert",
        "roberta": "roberta",
        "camembert": "roberta",
        "xlm-roberta": "roberta",
        "modernbert": "modernbert",
        "nomic_bert": "nomic_bert",
    },
    "glm": {
        "chatglm": "chatglm",
        "glm": "glm",
        "glm4": "glm",
        "glm4_moe": "glm4_moe",
        "glm4v_moe_text": "glm4_moe",
        "dots1": "dots1",
        "afmoe": "afmoe",
        "bailing_moe": "bailing_moe",
        "bailing_moe_v2": "bailing_moe",
        "deepseek": "deepseek",
    },
    "open_models": {
        "olmo": "olmo",
        "olmo2": "olmo2",
        "olmo3": "olmo2",
        "olmoe": "olmoe",
        "cohere": "cohere",
        "cohere2": "cohere2",
        "dbrx": "dbrx",
        "grok-1": "grok",
        "ernie4_5_moe": "ernie_moe",
        "hunyuan_v1_moe": "hunyuan_moe",
        "hunyuan": "hunyuan_moe",
    },
    "hybrids": {"kimi_linear": "kimi_linear", "jamba": "jamba", "falcon_h1": "falcon_h1"},
}
#: Wrappers whose text part says its own type and whose vision tower says its own.
WRAPPERS = (
    "mistral3",
    "llava",
    "llava_next",
    "llava_onevision",
    "pixtral",
    "internvl",
    "internvl_chat",
    "qwen3_omni_moe",
    "qwen3_omni_moe_thinker",
)
_READERS = {kind: (module, function) for module, kinds in _MODULES.items() for kind, function in kinds.items()}


def known() -> tuple[str, ...]:
    """Every ``model_type`` that has a reader."""
    return tuple(_READERS)


def find(model_type: str) -> FamilyReader | None:
    """The reader of ``model_type``, or None."""
    entry = _READERS.get(model_type)
    if entry is None:
        return None
    module, function = entry
    return cast(FamilyReader, getattr(importlib.import_module(f"trilemma.models.families.{module}"), function))
