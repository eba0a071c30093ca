"""A llama-server command to a plan: every flag that changes memory, layout or start-up gets its meaning here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.commands.command_line import FlagSettings, read_settings
from trilemma.engines.base import EngineCommand
from trilemma.engines.in_force import put_in_force, uncounted
from trilemma.engines.launch import EVERY_CARD, named_model, take_apart
from trilemma.engines.llama_cpp.facts import for_version
from trilemma.engines.llama_cpp.flags import table
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import round_up


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that a llama-server command asks for; flags win over their LLAMA_ARG_… variables.

    ``facts["gpus"]`` says how many cards it takes: a number, or "every" visible one (then the plan is for one card).
    ``options.context`` is the longest request of one slot. Raises `InputError` naming flag, value and remedy.
    """
    launch = take_apart([str(word) for word in argv], engine="llama.cpp", subcommands=("--server",))
    version = version or _version_of(launch.image)
    settings = read_settings([*_from_variables(launch.environment), *launch.words], table(), config_flag=False)
    warnings = put_in_force(settings, table(), version)
    model = (
        settings.value("hf-file")
        or settings.value("hf-repo")
        or settings.value("model-url")
        or named_model(settings, warnings, engine="llama-server", remedy="give -m FILE.gguf or -hf ORG/NAME-GGUF:QUANT")
    )
    extra = _extra(settings, version)
    facts = launch.facts(settings)
    cards = _cards(extra, facts)
    facts["gpus"] = cards
    _check_main_card(extra, facts)
    rows = extra.get("split-mode") in ("row", "tensor")
    number = cards if isinstance(cards, int) else 1
    layout = Layout(tp=number) if rows else Layout(pp=number)
    warnings += uncounted(extra, table())
    if extra.get("split-mode") == "tensor":
        warnings.append(PlanWarning(code="approximate-split", message="--split-mode tensor is counted as rows"))
    return EngineCommand(
        model=str(model),
        plan=Plan(
            engine=EngineRef(name="llama.cpp", version=version),
            pools=(Pool(layout=layout, options=_options(settings, extra, version), draft=_draft(settings, extra)),),
        ),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        warnings=tuple(warnings),
        facts=facts,
    )


def _version_of(image: str | None) -> str | None:
    """The build in an image's tag (``ghcr.io/ggml-org/llama.cpp:server-cuda-b7410``)."""
    match = re.search(r":[\w.-]*\b(b\d{3,6})\b", image or "")
    return match.group(1) if match else None


def _from_variables(environment: Mapping[str, str]) -> list[str]:
    """LLAMA_ARG_… variables as words: they hold where the line says nothing."""
    words: list[str] = []
    known = {flag.variable: flag for flag in table().flags.values() if flag.variable and flag.removed is None}
    for name, value in environment.items():
        flag = known.get(name)
        if flag is None:
            continue
        if flag.kind in ("switch", "toggle"):
            on = value.strip().lower() in ("1", "true", "on", "enabled", "")
            words += [f"--{flag.name}"] if on else []
        else:
            words += [f"--{flag.name}={value}"]
    return words


def _extra(settings: FlagSettings, version: str | None) -> dict[str, Any]:
    at = table().at(version)
    kept = {
        name: setting.value
        for name, setting in settings.by_name.items()
        if setting.flag.field == "extra" and setting.flag.exists_at(at) and name not in ("hf-repo",)
    }
    if kept.get("flash-attn") is True:
        kept["flash-attn"] = "on"
    if kept.get("fit") is True:
        kept["fit"] = "on"
    return kept


def _cards(extra: Mapping[str, Any], facts: Mapping[str, Any]) -> int | str:
    """How many cards work: those named by ``--device`` or ``--tensor-split``, one without a split, else every visible one."""
    devices = extra.get("device")
    if devices is not None:
        named = [part for part in str(devices).split(",") if part.strip()]
        return max(len(named), 1)
    if extra.get("split-mode") == "none":
        return 1
    if extra.get("tensor-split") is not None:
        return max(len([part for part in re.split(r"[,/]", str(extra["tensor-split"])) if part.strip()]), 1)
    visible = facts.get("gpus_visible")
    return int(visible) if visible else EVERY_CARD


def _check_main_card(extra: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """The one card of ``--split-mode none`` is among those that the command shows."""
    visible, main = facts.get("gpus_visible"), extra.get("main-gpu")
    if visible is not None and main is not None and not 0 <= int(main) < int(visible):
        raise InputError(f"--main-gpu {main} is none of the {visible} card(s) that the command shows; count from 0")


def _options(settings: FlagSettings, extra: dict[str, Any], version: str | None) -> ServeOptions:
    """``--ctx-size`` is that of all slots together unless they share it; what one request may have is its part."""
    facts = for_version(version)
    slots = settings.value("parallel")
    slots = None if slots is None or slots < 0 else slots
    if slots == 0:
        raise InputError("--parallel 0 serves no request; give 1 or more, or -1 for automatic")
    total = settings.value("ctx-size")
    shared = bool(extra.get("kv-unified", facts.slots["shared"] and slots is None))
    context = total if total else None
    if context is not None and not shared:
        number = slots or int(facts.slots["number"])
        context = context if number == 1 else int(round_up(context // number, facts.context_padding))
    if total == 0 and facts.context:
        extra["ctx-size"] = 0
    if settings.value("cache-type-k") is not None:
        extra.setdefault("cache-type-v", "f16")
    return ServeOptions(
        context=context,
        max_seqs=slots,
        max_batched_tokens=settings.value("ubatch-size"),
        kv_dtype=settings.value("cache-type-k"),
        text_only=not _tower_on_card(settings, extra),
        extra=extra,
    )


def _tower_on_card(settings: FlagSettings, extra: Mapping[str, Any]) -> bool:
    """A tower is loaded where a file of it is named, or found beside a model of the hub unless ``--no-mmproj`` says no; with
    ``--no-mmproj-offload`` it stays on the host."""
    named = extra.get("mmproj") is not None or bool(extra.get("mmproj-url"))
    found = settings.value("hf-repo") is not None and extra.get("mmproj-auto") is not False
    on_host = extra.get("mmproj-offload") is False or bool(extra.get("no-mmproj-offload"))
    return (named or found) and not on_host


def _draft(settings: FlagSettings, extra: dict[str, Any]) -> Draft | None:
    """The draft model of ``--spec-draft-model``, or drafting without one (``--spec-type``)."""
    model = extra.pop("spec-draft-model", None)
    kinds = [part for part in str(extra.get("spec-type") or "").split(",") if part and part != "none"]
    if model is None and not kinds:
        return None
    kind = kinds[0] if kinds else "draft-simple"
    methods = {"draft-simple": "draft", "draft-eagle3": "eagle3", "draft-mtp": "mtp"}
    method = methods.get(kind, "ngram" if kind.startswith("ngram") else shorten(kind))
    tokens = extra.pop("spec-draft-n-max", None) or settings.value("draft-max") or 3
    extra.pop("spec-type", None)
    return Draft(method=method, tokens=max(int(tokens), 1), model=model)
