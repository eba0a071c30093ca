"""What starts a script on the Trainer: Accelerate's file and flags, and FSDP as the script's own flags ask for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trilemma.commands.launchers import LauncherCommand
from trilemma.commands.option_words import Options, read_options
from trilemma.engines.accelerate.config import AccelerateConfig, accelerate_from_mapping, read_accelerate
from trilemma.engines.fsdp import fsdp_sharding
from trilemma.engines.training import framework_facts
from trilemma.engines.transformers.run import Sharding
from trilemma.errors import InputError, shorten
from trilemma.models.documents import read_json


def accelerate_of(launch: LauncherCommand) -> AccelerateConfig | None:
    """The configuration behind ``accelerate launch``: its file, with launch flags in the file's words over it."""
    if launch.starter != "accelerate":
        return None
    facts = framework_facts("accelerate")
    given = read_options(launch.launcher, values=frozenset(facts["launch_values"]), fold=True)
    path = given.text("config_file")
    document: dict[str, Any] = {}
    if path is not None:
        found = read_accelerate(path)
        if len(given.words) == 1:
            return found
        from trilemma.commands.bounded_yaml import load_all
        from trilemma.outside_files import read_text

        document = dict(load_all(read_text(Path(path)), name=path)[0])
    return accelerate_from_mapping(_launch_flags(given, document), name=path or "accelerate launch")


def _launch_flags(given: Options, document: dict[str, Any]) -> dict[str, Any]:
    """Flags of ``accelerate launch`` as keys of its file."""
    facts = framework_facts("accelerate")
    fsdp, deepspeed = dict(document.get("fsdp_config") or {}), dict(document.get("deepspeed_config") or {})
    for name, words in given.words.items():
        value = words[0] if words else True
        if name in facts["fsdp"]:
            fsdp[name] = _scalar(value)
        elif name in facts["deepspeed"]:
            deepspeed[name] = _scalar(value)
        elif name in ("num_processes", "num_machines", "mixed_precision"):
            document[name] = _scalar(value)
    kind = document.get("distributed_type", "MULTI_GPU")
    kind = "FSDP" if given.on("use_fsdp") else "DEEPSPEED" if given.on("use_deepspeed") else kind
    return {**document, "distributed_type": kind, "fsdp_config": fsdp, "deepspeed_config": deepspeed}


def _scalar(value: Any) -> Any:
    text = str(value)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdecimal() else value


def own_fsdp(given: Sequence[str], config_value: Any) -> Sharding | None:
    """``--fsdp "full_shard auto_wrap offload"`` with ``--fsdp_config`` (a file, JSON, or a mapping of a file)."""
    words = list(given)
    config = _fsdp_config(config_value)
    if not words and not config:
        return None
    # The Trainer takes a bare switch for FSDP2 (transformers 5); "false" leaves it off.
    if words and words[0].lower() in ("false", "0", "no", "none"):
        return None
    named = [word for word in words if word.lower() not in ("true", "1", "yes")]
    return fsdp_sharding(named, config)[0]


def _fsdp_config(value: Any) -> Mapping[str, Any]:
    if value is None or isinstance(value, Mapping):
        return value or {}
    value = str(value)
    if value.lstrip().startswith("{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"--fsdp_config {shorten(value)!r} is not valid JSON; give an object or a file") from None
        return found if isinstance(found, Mapping) else {}
    return read_json(Path(value), limit=2**20, give="name the file of --fsdp_config as it lies here")
