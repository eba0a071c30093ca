"""An ``ollama run`` or ``ollama create`` command to a plan: the server's environment, the Modelfile, the library's tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from trilemma.commands.command_line import read_settings
from trilemma.commands.named_files import text_of
from trilemma.data.files import read_data
from trilemma.engines.base import EngineCommand
from trilemma.engines.in_force import put_in_force
from trilemma.engines.launch import EVERY_CARD, named_model, take_apart
from trilemma.engines.llama_cpp.cards import cache_format
from trilemma.engines.ollama.flags import table
from trilemma.engines.ollama.modelfile import Modelfile, parse, said
from trilemma.engines.ollama.tags import is_file, weights_of
from trilemma.engines.ollama.tags import spelled_there as spelled_there
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions

_OFF = ("0", "f", "false", "")
_MOST = 1 << 40


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that ``[OLLAMA_…=value] ollama run MODEL`` or ``ollama create NAME -f Modelfile`` asks for.

    Parameters of the Modelfile win over the environment, as there. The server takes every card that it is shown, the fewest of
    them that hold the model. Raises `InputError` naming setting, value and remedy.
    """
    words = [str(word) for word in argv]
    launch = take_apart(words, engine="ollama", subcommands=("run", "serve", "start"))
    settings = read_settings(launch.words, table(), config_flag=False)
    warnings = put_in_force(settings, table(), version)
    creates = "create" in takewhile(lambda word: word not in launch.words, words)
    made = None
    if creates:
        named = settings.value("file") or "Modelfile"
        made = parse(text_of(str(named)), name=str(named))
    else:
        settings.words[:] = settings.words[:1]  # what follows the model is a prompt
    remedy = "give ollama run MODEL, with the server's OLLAMA_… variables before it"
    word = made.model if made else named_model(settings, warnings, engine="ollama", remedy=remedy)
    chosen = _settings(launch.environment, made)
    told = {} if made is None else _told(made, str(named), next(iter(settings.words), made.model))
    if made is None and is_file(word):
        message = (
            f"ollama run takes names and no files: write FROM {shorten(word)} into a Modelfile, then ollama create"
        )
        warnings.append(PlanWarning(code="refused-value", message=message))
    model = weights_of(word)
    if settings.value("quantize"):
        model = f"{word}:{settings.value('quantize')}" if ":" not in word else f"{word}-{settings.value('quantize')}"
    if made is not None and made.adapters:
        warnings.append(PlanWarning(code="not-counted", message="ADAPTER: what adapters take is not counted"))
    blind = (
        made is not None and made.model.lower().endswith(".gguf") and not made.projector
    )  # such a file holds no tower
    facts = launch.facts(settings)
    visible = facts.get("gpus_visible")
    facts["gpus"] = int(visible) if visible else EVERY_CARD
    return EngineCommand(
        model=model,
        plan=Plan(
            engine=EngineRef(name="ollama", version=version or _version_of(launch.image)),
            pools=(
                Pool(layout=Layout(pp=int(visible or 1)), options=replace(_options(chosen, told), text_only=blind)),
            ),
        ),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        warnings=tuple(warnings),
        facts=facts,
    )


def _told(made: Modelfile, file: str, name: str) -> dict[str, str]:
    """The Modelfile and what is made of it; ``said`` is what it states, where options keep all of it."""
    kept = read_data("engines/ollama.toml")["settings"]["parameters"]
    whole = not made.says_more and made.parameters.keys() <= kept.keys()
    return {"file": file, "create": name} | ({"said": said(made.parameters)} if whole else {})


def _version_of(image: str | None) -> str | None:
    """The version in the tag of an image (``ollama/ollama:0.12.6-rocm``)."""
    tag = (image or "").rpartition(":")[2].partition("-")[0]
    return tag if tag.count(".") == 2 and tag.replace(".", "").isdigit() else None


def _settings(environment: Mapping[str, str], made: Modelfile | None) -> dict[str, str]:
    """Option → value as given, those of a Modelfile over those of the environment."""
    known = read_data("engines/ollama.toml")["settings"]
    found = {known["variables"][name]: text for name, text in environment.items() if name in known["variables"]}
    given = {} if made is None else made.parameters
    return found | {known["parameters"][name]: text for name, text in given.items() if name in known["parameters"]}


def _options(chosen: Mapping[str, str], told: Mapping[str, str]) -> ServeOptions:
    """``told``: the Modelfile and what is made of it, where the options are of one."""
    numbers = {
        name: _number(name, chosen[name]) for name in ("context", "max_seqs", "max_batched_tokens") if name in chosen
    }
    extra: dict[str, Any] = dict(told)
    if (layers := chosen.get("n-gpu-layers")) is not None and _number("n-gpu-layers", layers, least=-1) >= 0:
        extra["n-gpu-layers"] = str(_number("n-gpu-layers", layers))
    if "main-gpu" in chosen:
        extra["main-gpu"] = _number("main-gpu", chosen["main-gpu"])
    if overhead := _number("gpu-overhead", chosen.get("gpu-overhead", "0")):
        extra["gpu-overhead"] = overhead
    if chosen.get("sched-spread", "").lower() not in _OFF:
        extra["sched-spread"] = True
    if "flash-attn" in chosen:
        extra["flash-attn"] = "off" if chosen["flash-attn"].lower() in _OFF else "on"
    extra |= {name: chosen[name] for name in ("fit", "fit-target") if chosen.get(name)}
    kv = (chosen.get("kv_dtype") or "").lower() or None
    cache_format(kv, "OLLAMA_KV_CACHE_TYPE")
    return ServeOptions(
        context=numbers.get("context") or None,
        max_seqs=numbers.get("max_seqs") or None,
        max_batched_tokens=numbers.get("max_batched_tokens") or None,
        kv_dtype=kv,
        extra=extra,
    )


def _number(name: str, text: str, *, least: int = 0) -> int:
    try:
        value = int(text.strip().strip("\"'"))
    except ValueError:
        value = least - 1
    if not least <= value <= _MOST:
        raise InputError(f"{name} {shorten(text)!r} is not a whole number from {least} on")
    return value
