"""A DeepSpeed JSON file: ZeRO stage, offload, batch, precision; "auto" leaves a value to the script's own flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trilemma.commands.option_words import real, truth, whole
from trilemma.engines.training import framework_facts, unknown_warning
from trilemma.engines.transformers.run import Sharding
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.models.documents import read_json

_MOST_BYTES = 2**20
_DTYPES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}


@dataclass(kw_only=True, slots=True)
class DeepSpeedConfig:
    """What the file states; None where it says "auto" or nothing."""

    sharding: Sharding
    global_batch: int | None
    micro_batch: int | None
    accumulation: int | None
    compute: str | None
    optimizer: str | None
    tp: int
    sequence_parallel: int
    unknown: tuple[str, ...] = ()
    warnings: list[PlanWarning] = field(default_factory=list)


def read_config(path: str) -> DeepSpeedConfig:
    """The DeepSpeed file at ``path``. Raises `InputError` naming key, value and remedy."""
    return from_mapping(
        read_json(Path(path), limit=_MOST_BYTES, give="name the DeepSpeed file as it lies here"), name=path
    )


def from_mapping(document: Mapping[str, Any], *, name: str) -> DeepSpeedConfig:
    """The contents of a DeepSpeed file. Keys that DeepSpeed accepts in silence and does not know are named."""
    facts = framework_facts("deepspeed_keys")
    zero = _section(document, "zero_optimization", name)
    unknown = [key for key in document if key not in facts["top"]]
    unknown += [f"zero_optimization.{key}" for key in zero if key not in facts["zero_optimization"]]
    shown = shorten(name, most=40)
    warnings = list(unknown_warning(unknown, facts["top"], where=f"DeepSpeed ({shown})"))
    optimizer = _section(document, "optimizer", name).get("type")
    return DeepSpeedConfig(
        sharding=_sharding(zero, document, name),
        global_batch=_count(document, "train_batch_size"),
        micro_batch=_count(document, "train_micro_batch_size_per_gpu"),
        accumulation=_count(document, "gradient_accumulation_steps"),
        compute=_compute(document, name),
        optimizer=_optimizer(optimizer),
        tp=_count(_section(document, "tensor_parallel", name), "autotp_size", low=0) or 1,
        sequence_parallel=_count(document, "sequence_parallel_size") or 1,
        unknown=tuple(unknown),
        warnings=warnings,
    )


def _section(document: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    part = document.get(key, {})
    if part is None or part == "auto":
        return {}
    if not isinstance(part, Mapping):
        raise InputError(f"{shorten(name)}: {key} is not an object; give one such as {{}}")
    return part


def _count(document: Mapping[str, Any], key: str, *, low: int = 1) -> int | None:
    value = document.get(key)
    return None if value is None or value == "auto" else whole(value, key, low=low)


def _sharding(zero: Mapping[str, Any], document: Mapping[str, Any], name: str) -> Sharding:
    stage = whole(zero.get("stage", 0), "zero_optimization.stage", low=0, high=3)
    optimizer = _section(zero, "offload_optimizer", name)
    weights = _section(zero, "offload_param", name)
    moved = 0.0
    if str(optimizer.get("device", "none")) in ("cpu", "nvme") or zero.get("cpu_offload") is True:
        moved = real(optimizer.get("ratio", 1.0), "zero_optimization.offload_optimizer.ratio")
        if moved > 1:
            raise InputError(f"zero_optimization.offload_optimizer.ratio {moved:g} is out of range; give 0 to 1")
    # hpZ keeps a second shard of the weights inside a group; MiCS shards everything over one.
    group = whole(zero.get("mics_shard_size", -1), "zero_optimization.mics_shard_size", low=-1)
    kinds = _section(document, "data_types", name)
    gradients = kinds.get("grad_accum_dtype")
    if gradients is not None and gradients not in _DTYPES:
        raise InputError(f"data_types.grad_accum_dtype {shorten(str(gradients))!r} is none of {', '.join(_DTYPES)}")
    return Sharding(
        by="deepspeed",
        zero=stage,
        group=group if group > 0 else None,
        offload_optimizer=moved,
        offload_weights=1.0 if stage == 3 and str(weights.get("device", "none")) in ("cpu", "nvme") else 0.0,
        gradients=gradients,
    )


def _compute(document: Mapping[str, Any], name: str) -> str | None:
    """The 16-bit format in force; "fp32" where both are off, None where the file leaves it open."""
    open_ended = False
    for key, found in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        enabled = _section(document, key, name).get("enabled", False)
        if enabled == "auto":
            open_ended = True
        elif truth(enabled, f"{key}.enabled"):
            return found
    return None if open_ended else "fp32"


def _optimizer(kind: Any) -> str | None:
    if not isinstance(kind, str) or kind == "auto":
        return None
    known = {
        "adam": "adamw_torch", "adamw": "adamw_torch", "fusedadam": "adamw_torch", "deepspeedcpuadam": "adamw_torch",
        "onebitadam": "adamw_torch", "muon": "muon", "lion": "lion_32bit", "sgd": "sgd",
    }  # fmt: skip
    return known.get(kind.lower(), kind)
