"""Recipes that a card does not support: formats of training, attention kernels and number types, judged for a named card."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from trilemma.diagnosis.findings import Finding
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.number_formats import training_lacks
from trilemma.linting.said import at
from trilemma.linting.script import Script

#: Recipe classes and functions, by the last part of their names → the products they cast to.
_RECIPES = {
    "MXFP8BlockScaling": "mxfp8", "NVFP4BlockScaling": "nvfp4", "Float8BlockScaling": "fp8_block", "DelayedScaling": "fp8_tensor",
    "Float8CurrentScaling": "fp8_tensor", "convert_to_float8_training": "fp8_tensor", "MXFP8TrainingOpConfig": "mxfp8",
    "NVFP4TrainingConfig": "nvfp4", "MXLinearConfig": "mxfp8",
}  # fmt: skip
_BF16 = 8.0  # compute capability from which bfloat16 has units (CUDA programming guide, arithmetic throughput)
_FLASH = 8.0  # FlashAttention 2 (Dao-AILab/flash-attention README.md)


def findings(script: Script, card: Accelerator) -> Iterator[Finding]:
    capability = card.compute_capability
    for call in script.calls():
        name = (script.imported(call.func) or "").rpartition(".")[2]
        why = training_lacks(_RECIPES[name], card) if name in _RECIPES else None
        if why:
            yield at(
                script,
                call,
                "recipe.unsupported",
                why,
                "choose a recipe that the card has: trilemma precision recipe MODEL --gpu …",
            )
        for one in call.keywords:
            said = one.value.value if isinstance(one.value, ast.Constant) else None
            if (
                one.arg == "attn_implementation"
                and said == "flash_attention_2"
                and capability is not None
                and capability < _FLASH
            ):
                why = f"FlashAttention 2 needs compute capability 8.0, and {card.name} has {capability:g}"
                yield at(script, one.value, "recipe.unsupported", why, 'attn_implementation="sdpa"')
            if one.arg in ("bf16", "bf16_full_eval") and said is True and capability is not None and capability < _BF16:
                why = f"{card.name} (compute capability {capability:g}) has no units for bfloat16"
                yield at(script, one.value, "recipe.unsupported", why, "fp16=True, with loss scaling")
