"""Targets of an export: which file each one is, and how it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from trilemma.engines import traits_of
from trilemma.engines.traits import those
from trilemma.errors import UnknownName
from trilemma.outside_files import written
from trilemma.precision.export import compressed_tensors, toolkits
from trilemma.precision.export.plan_modules import PlanModules


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _yaml(value: Any) -> str:
    class Plain(yaml.SafeDumper):
        """Equal parts are written again, never as aliases that readers stumble over."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    text: str = yaml.dump(value, Dumper=Plain, sort_keys=False, allow_unicode=True, width=200)
    return text


def _flags_of(engine: str) -> tuple[str, str, Callable[[PlanModules], str]]:
    """Flags of a server that reads the checkpoint's own description of its formats."""
    title = f"flags of {traits_of(engine).label}"
    return f"{engine}_flags.txt", title, lambda plan: toolkits.engine_flags(plan, engine=engine) + "\n"


#: Target → (file name, what it holds, text of the file).
TARGETS: dict[str, tuple[str, str, Callable[[PlanModules], str]]] = {
    "compressed-tensors": (
        "quantization_config.json", "quantization_config of a compressed-tensors checkpoint (vLLM, SGLang, Transformers)",
        lambda plan: _json(compressed_tensors.quantization_config(plan)),
    ),
    "llm-compressor": (
        "recipe.yaml", "recipe for llmcompressor.oneshot", lambda plan: _yaml(compressed_tensors.recipe(plan)),
    ),
    "autoround": ("layer_config.json", "layer_config of intel/auto-round", lambda plan: _json(toolkits.auto_round(plan))),
    "modelopt": (
        "modelopt_recipe.yaml", "PTQ recipe of NVIDIA Model Optimizer", lambda plan: _yaml(toolkits.model_optimizer(plan)),
    ),
    "torchao": ("torchao_config.json", "FqnToConfig of torchao", lambda plan: _json(toolkits.torchao(plan))),
    "bitsandbytes": (
        "bnb_config.json", "quantization_config of bitsandbytes", lambda plan: _json(toolkits.bits_and_bytes(plan)),
    ),
    "llama-quantize": ("quantize.sh", "a call of llama-quantize with --tensor-type", toolkits.llama_quantize),
}  # fmt: skip
TARGETS |= {name: _flags_of(name) for name in those("cache_words")}


def export_text(plan: PlanModules, target: str) -> tuple[str, str]:
    """File name and text of ``plan`` for ``target``. Raises `UnknownName`, or `InputError` for formats the target lacks."""
    if target not in TARGETS:
        raise UnknownName("export target", target, TARGETS, hint=f"known are {', '.join(TARGETS)}")
    name, _, write = TARGETS[target]
    return name, write(plan)


def write_export(plan: PlanModules, target: str, folder: Path) -> Path:
    """Write the file of ``target`` into ``folder`` (made where it is missing) and give its path."""
    name, text = export_text(plan, target)
    with written(folder, give="give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(text, encoding="utf-8")
    return path
