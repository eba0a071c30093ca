"""An Accelerate configuration file: processes, precision, and FSDP, DeepSpeed or plain data parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trilemma.commands.bounded_yaml import load_all
from trilemma.commands.option_words import real, whole
from trilemma.engines.deepspeed.config import DeepSpeedConfig, from_mapping, read_config
from trilemma.engines.fsdp import fsdp_sharding
from trilemma.engines.training import framework_facts, unknown_warning
from trilemma.engines.transformers.run import Sharding
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.outside_files import read_text

_KINDS = ("FSDP", "DEEPSPEED", "MULTI_GPU", "NO", "MULTI_XPU", "MEGATRON_LM")


@dataclass(kw_only=True, slots=True)
class AccelerateConfig:
    """What the file states; None where it says nothing. ``deepspeed`` is the DeepSpeed part, whole."""

    sharding: Sharding
    processes: int | None
    machines: int | None
    compute: str
    deepspeed: DeepSpeedConfig | None
    tp: int
    cp: int
    unknown: tuple[str, ...] = ()
    warnings: list[PlanWarning] = field(default_factory=list)


def read_accelerate(path: str) -> AccelerateConfig:
    """The file at ``path`` (YAML, or JSON, which is YAML too). Raises `InputError`."""
    documents = load_all(read_text(Path(path)), name=path)
    document = documents[0] if documents else None
    if not isinstance(document, Mapping):
        raise InputError(f"{shorten(path)} holds no mapping; give a file that accelerate config wrote")
    return accelerate_from_mapping(document, name=path)


def accelerate_from_mapping(document: Mapping[str, Any], *, name: str) -> AccelerateConfig:
    """The contents of an Accelerate file (or launch flags in its words)."""
    facts = framework_facts("accelerate")
    kind = str(document.get("distributed_type", "NO")).upper()
    if kind not in _KINDS:
        raise InputError(f"distributed_type {shorten(kind)!r} is not read; use FSDP, DEEPSPEED or MULTI_GPU")
    if kind == "MEGATRON_LM":
        raise InputError("distributed_type MEGATRON_LM is not read; give the pretrain_gpt.py command itself")
    fsdp, parallel = _section(document, "fsdp_config", name), _section(document, "parallelism_config", name)
    unknown = [key for key in document if key not in facts["top"]]
    unknown += [f"parallelism_config.{key}" for key in parallel if key not in facts["parallelism"]]
    deepspeed = _deepspeed(_section(document, "deepspeed_config", name), name) if kind == "DEEPSPEED" else None
    sizes = {
        key: _size(parallel, f"parallelism_config_{key}_size") for key in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    machines = _count(document, "num_machines")
    sharding = Sharding()
    if deepspeed is not None:
        sharding = deepspeed.sharding
    elif kind == "FSDP":
        copies = (sizes["dp_replicate"] or 1) > 1
        group = (sizes["dp_shard"] or 1) * (sizes["cp"] or 1) if copies else None
        sharding, left = fsdp_sharding((), fsdp, group=group)
        unknown += left
    known = (*facts["top"], *(f"fsdp_config.{key}" for key in facts["fsdp"]))
    warnings = list(unknown_warning(unknown, known, where=f"accelerate ({shorten(name, most=40)})"))
    return AccelerateConfig(
        sharding=sharding,
        processes=_count(document, "num_processes"),
        machines=machines,
        compute=_compute(document),
        deepspeed=deepspeed,
        tp=sizes["tp"] or 1,
        cp=max(sizes["cp"] or 1, sizes["sp"] or 1),
        unknown=tuple(unknown),
        warnings=warnings,
    )


def _section(document: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    part = document.get(key) or {}
    if not isinstance(part, Mapping):
        raise InputError(f"{shorten(name)}: {key} is not a mapping; write its keys below it, indented")
    return part


def _count(document: Mapping[str, Any], key: str) -> int | None:
    return None if document.get(key) is None else whole(document[key], key)


def _size(parallel: Mapping[str, Any], key: str) -> int | None:
    return None if parallel.get(key) is None else whole(parallel[key], key, low=-1)


def _compute(document: Mapping[str, Any]) -> str:
    value = document.get("mixed_precision", "no")
    text = "no" if value is False or value is None else str(value).lower()
    if text not in ("no", "bf16", "fp16", "fp8"):
        raise InputError(f"mixed_precision {shorten(text)!r} is none of no, bf16, fp16, fp8")
    return {"no": "fp32", "fp8": "bf16"}.get(text, text)


def _deepspeed(part: Mapping[str, Any], name: str) -> DeepSpeedConfig:
    """The DeepSpeed part: a file of its own, or the few keys that Accelerate builds one from."""
    path = part.get("deepspeed_config_file")
    if path is not None:
        own = Path(str(path))
        beside = Path(name).parent / own
        return read_config(str(beside if not own.is_absolute() and not own.exists() else own))
    stage = whole(part.get("zero_stage", 2), "deepspeed_config.zero_stage", low=0, high=3)
    zero: dict[str, Any] = {"stage": stage}
    for kind in ("optimizer", "param"):
        device = part.get(f"offload_{kind}_device")
        if device not in (None, "none"):
            zero[f"offload_{kind}"] = {"device": str(device)}
    document: dict[str, Any] = {"zero_optimization": zero, "bf16": {"enabled": "auto"}}
    for key in ("gradient_accumulation_steps", "train_micro_batch_size_per_gpu"):
        if part.get(key) is not None:
            document[key] = part[key]
    if part.get("gradient_clipping") not in (None, "none", "auto"):
        real(part["gradient_clipping"], "deepspeed_config.gradient_clipping")
    return from_mapping(document, name=name)
