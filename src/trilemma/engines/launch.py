"""What surrounds an engine's flags: environment, image, the program's words, and the model that they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trilemma.commands.command_line import FlagSettings
from trilemma.commands.flag_words import strict_json
from trilemma.engines.base import EngineCommand
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans import Layout
from trilemma.quantities import counted

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127})=(.*)", re.DOTALL)
#: Variables that can change what the engine does; names that sound like a secret are never kept.
_KEPT = re.compile(
    r"(VLLM|SGLANG|SGL|TRTLLM|TLLM|LLAMA|GGML|CUDA|NVIDIA|HIP|ROCR|ROCM|NCCL|RCCL|PYTORCH|TORCH|FLASHINFER|RAY)_\w+"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
#: Value of the fact ``gpus`` of a command that takes every card it finds.
EVERY_CARD = "every"
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A command taken apart: leading ``NAME=value`` words, the image in place of a program, the words after its name."""

    environment: Mapping[str, str]
    image: str | None
    words: list[str]

    def facts(self, settings: FlagSettings) -> dict[str, Any]:
        """What of the surroundings a reader keeps: variables that matter, flags of the server, GPUs made visible."""
        kept = {
            name: value
            for name, value in self.environment.items()
            if _KEPT.fullmatch(name) and not _SECRET.search(name)
        }
        facts: dict[str, Any] = {
            "environment": kept,
            "server": {name: one.value for name, one in settings.by_name.items() if one.flag.field == "server"},
        }
        if self.image is not None:
            facts["image"] = self.image
        for name in _VISIBLE:
            devices = self.environment.get(name, "all")
            if devices not in ("all", "none", "void", ""):
                facts["gpus_visible"] = len([device for device in devices.split(",") if device.strip()])
                break
        return facts


def take_apart(words: list[str], *, engine: str, subcommands: tuple[str, ...] = ("serve",)) -> Launch:
    """Environment, image and flags of a command as `trilemma.engines.extract.extract` gives it.

    Images whose entry point is the engine itself are given one of its ``subcommands``, which is dropped.
    """
    from trilemma.engines.programs import image_engine, program_at_start  # writing a command needs no reader

    environment: dict[str, str] = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        environment[match.group(1)] = match.group(2)
        words = words[1:]
    image = None
    if words and not words[0].startswith("-") and not program_at_start(words) and image_engine(words[0]) == engine:
        image, words = words[0], words[1:]
        words = words[1:] if words[:1] and words[0] in subcommands else words
    return Launch(environment=environment, image=image, words=words[program_at_start(words) :])


def config_overrides(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the options of a command change in the model's configuration. Raises `InputError`."""
    text = extra.get("json-model-override-args")
    found = extra.get("hf-overrides") or text or {}
    if isinstance(found, str):
        try:
            found = strict_json(found)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, Mapping):
            raise InputError(f"--json-model-override-args {shorten(str(text))!r} is not a JSON object")
    return found if isinstance(found, Mapping) else {}


def named_model(settings: FlagSettings, warnings: list[PlanWarning], *, engine: str, remedy: str) -> str:
    """The model that a command names by a stray word or a flag. Raises `InputError` where it names none."""
    words = list(settings.words)
    named = next((one.value for one in settings.by_name.values() if one.flag.field == "model"), None)
    if not words and named is None and settings.unknown_values:
        named = settings.unknown_values[0]
        message = f"no model named: {shorten(named)}, the word after an unknown flag, is taken for it"
        warnings.append(PlanWarning(code="assumed-model", message=message))
    model = words.pop(0) if words else named
    if words:
        message = f"{engine} would refuse the stray word {shorten(words[0])!r}"
        warnings.append(PlanWarning(code="stray-word", message=message))
    if not isinstance(model, str) or not model.strip():
        raise InputError(f"the {engine} command names no model; {remedy}")
    if model.startswith(("$", "`")) or "$(" in model or "${" in model:
        raise InputError(f"the model {shorten(model)!r} is a shell variable without a value here; write its value")
    return model


def check_visible(layout: Layout, facts: Mapping[str, Any], warnings: list[PlanWarning]) -> None:
    """One node that shows fewer GPUs than the layout takes cannot start."""
    visible = facts.get("gpus_visible")
    if visible is not None and layout.gpus > visible:
        message = f"the layout takes {counted(layout.gpus, 'GPU')} where the command shows {visible}"
        warnings.append(PlanWarning(code="too-few-visible", message=message))


def check_model_word(model: str) -> str:
    """A model's name that is safe on a command line. Raises `InputError`."""
    if not model or model.startswith("-") or len(model) > 4096 or any(char in model for char in "\0\n\r"):
        raise InputError(f"{shorten(model)!r} cannot be a model name on a command line; give a hub id or a path")
    return model


def on_every_card(command: EngineCommand, gpus: int) -> EngineCommand:
    """``command`` on ``gpus`` cards where it takes every card that it finds (llama-server without a list of devices)."""
    if command.facts.get("gpus") != EVERY_CARD or gpus < 2:
        return command
    pool = command.plan.pool
    by_rows = pool.options.extra.get("split-mode") in ("row", "tensor")
    spread = replace(pool, layout=Layout(tp=gpus) if by_rows else Layout(pp=gpus))
    return replace(command, plan=replace(command.plan, pools=(spread,)))


def share_of_card(value: float, *, shown: str) -> float:
    """A memory fraction in (0, 1]. Raises `InputError` with the percentage turned into a share."""
    if not 0 < value <= 1:
        remedy = f"give {value / 100:g}" if 1 < value <= 100 else "give a share above 0 and at most 1, such as 0.9"
        raise InputError(f"{shown} {value:g} is not a share of the card's memory; {remedy}")
    return value
