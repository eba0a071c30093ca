"""A vLLM command line to a plan: every flag that changes memory, layout, speed or start-up gets its meaning here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.engines.base import EngineCommand
from trilemma.engines.command_line import Settings
from trilemma.engines.commands import image_engine, program_at_start
from trilemma.engines.vllm.capture_sizes import read_capture_sizes
from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.settings import read_settings
from trilemma.engines.vllm.speculation import read_draft
from trilemma.errors import Caution, InputError, nearest, shorten
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,127})=(.*)", re.DOTALL)
#: Variables that can change what the engine does; names that sound like a secret are never kept.
_KEPT = re.compile(r"(VLLM|CUDA|NVIDIA|HIP|ROCR|ROCM|NCCL|RCCL|PYTORCH|TORCH|FLASHINFER|RAY)_\w+")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_DTYPES = {"half": "float16", "float": "float32"}
_KNOWN_DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")


def read(argv: Sequence[str]) -> EngineCommand:
    """The plan that a vLLM command asks for.

    ``argv``: ``[NAME=value…] vllm serve MODEL flags…``, ``python -m vllm.entrypoints.openai.api_server --model …`` or
    ``[NAME=value…] vllm/vllm-openai:TAG flags…`` (a version in the tag becomes the plan's engine version), as
    `trilemma.engines.commands.extract` gives them. Unknown flags are named, not fatal. ``facts`` hold ``environment``,
    ``server`` (flags without effect on the plan), ``gpus_visible`` where the command says so, and ``image``. Raises
    `InputError` naming flag, value and remedy.
    """
    environment, image, words = _head([str(word) for word in argv])
    version = _version_of(image)
    settings = read_settings(words)
    cautions = _flag_cautions(settings, version)
    model = _model(settings, cautions)
    layout = _layout(settings)
    draft, draft_rest, draft_cautions = read_draft(settings)
    cautions += draft_cautions
    extra = _extra(settings, layout, version)
    options = _options(settings, extra)
    if draft_rest:
        extra["speculative-config"] = draft_rest
    cautions += _uncounted(options.extra)
    facts = _facts(settings, environment, image)
    _check_visible(layout, facts, extra, cautions)
    pool = Pool(layout=layout, options=options, draft=draft)
    return EngineCommand(
        model=model,
        plan=Plan(engine=EngineRef(name="vllm", version=version), pools=(pool,)),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        cautions=tuple(cautions),
        facts=facts,
    )


def _head(words: list[str]) -> tuple[dict[str, str], str | None, list[str]]:
    """(environment, image, words after the program's name)."""
    environment: dict[str, str] = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        environment[match.group(1)] = match.group(2)
        words = words[1:]
    image = None
    if words and not words[0].startswith("-") and not program_at_start(words) and image_engine(words[0]) == "vllm":
        image, words = words[0], words[1:]
        # Images whose entry point is vllm itself are given its subcommand.
        words = words[1:] if words[:1] == ["serve"] else words
    return environment, image, words[program_at_start(words) :]


def _version_of(image: str | None) -> str | None:
    """The version in an image's tag (``:v0.19.0-cu130``); None for ``latest``, ``nightly`` and other makers' numbers."""
    if image is None or not re.search(r"(^|/)vllm-openai[\w-]*:", image):
        return None
    match = re.search(r":v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?(?:\.?(?:post|rc|dev)\d{1,6})*)", image)
    return match.group(1) if match else None


def _flag_cautions(settings: Settings, version: str | None) -> list[Caution]:
    """What the reader of the plan must know of the flags: unknown, gone, not there yet, without effect."""
    flags = table()
    at = flags.at(version)
    shown_version = version or ".".join(map(str, at))
    cautions = []
    for word in dict.fromkeys(settings.unknown):
        near = nearest(word.lstrip("-").replace("_", "-"), flags.flags, most=2)
        hint = f"; did you mean {' or '.join('--' + name for name in near)}?" if near else ""
        cautions.append(Caution(code="unknown-flag", message=f"vLLM {shown_version} is not known to have {word}{hint}"))
    for name in settings.replaced:
        message = f"vLLM takes the dotted keys of --{name} alone and drops the whole value given beside them"
        cautions.append(Caution(code="replaced-value", message=message))
    for setting in settings.by_name.values():
        flag = setting.flag
        instead = f"; use --{flag.renamed_to}" if flag.renamed_to else "; leave it out"
        if flag.removed is not None and flag.gone_at(at):
            gone = ".".join(map(str, flag.removed))
            message = f"vLLM {shown_version} has no --{flag.name} (gone by {gone}) and would refuse it{instead}"
            cautions.append(Caution(code="removed-flag", message=message))
        elif not flag.exists_at(at):
            came = ".".join(map(str, flag.since))
            message = f"vLLM {shown_version} has no --{flag.name} yet (first seen in {came}) and would refuse it"
            cautions.append(Caution(code="newer-flag", message=message))
        elif flag.note and at >= flags.versions[-1]:
            cautions.append(Caution(code="deprecated-flag", message=f"--{flag.name}: {flag.note}"))
    return cautions


def _model(settings: Settings, cautions: list[Caution]) -> str:
    words = list(settings.words)
    named = settings.value("model")
    if not words and named is None and settings.unknown_values:
        named = settings.unknown_values[0]
        message = f"no model named: {shorten(named)}, the word after an unknown flag, is taken for it"
        cautions.append(Caution(code="assumed-model", message=message))
    model = words.pop(0) if words else named
    if words:
        message = f"vLLM would refuse the stray word {shorten(words[0])!r}"
        cautions.append(Caution(code="stray-word", message=message))
    if not isinstance(model, str) or not model.strip():
        raise InputError("the vLLM command names no model; give vllm serve MODEL or --model MODEL")
    if model.startswith(("$", "`")) or "$(" in model or "${" in model:
        raise InputError(f"the model {shorten(model)!r} is a shell variable without a value here; write its value")
    return model


def _layout(settings: Settings) -> Layout:
    degrees = {
        setting.flag.field.removeprefix("layout."): setting.value
        for setting in settings.by_name.values()
        if setting.flag.field.startswith("layout.") and setting.flag.field != "layout.ep"
    }
    spread = bool(settings.value("enable-expert-parallel"))
    # vLLM spreads experts over every rank of a pipeline stage (FusedMoEParallelConfig: ep = tp · dp · pcp).
    group = degrees.get("tp", 1) * degrees.get("dp", 1) * degrees.get("cp", 1)
    return Layout(**degrees, ep=group if spread else 1)


def _extra(settings: Settings, layout: Layout, version: str | None) -> dict[str, Any]:
    """Options without a field. A flag that the version has not is left out, as its caution says."""
    at = table().at(version)
    extra: dict[str, Any] = {}
    for name, setting in settings.by_name.items():
        if setting.flag.field == "extra" and setting.flag.exists_at(at):
            extra[name] = setting.value
    if extra.get("hf-overrides") is not None and not isinstance(extra["hf-overrides"], Mapping):
        raise InputError(f"--hf-overrides {shorten(str(extra['hf-overrides']))!r} is not a JSON object")
    if settings.value("max-model-len") == "auto":
        extra["max-model-len"] = "auto"
    if settings.value("enable-expert-parallel") and layout.ep == 1:
        extra["enable-expert-parallel"] = True
    return extra


def _uncounted(extra: Mapping[str, Any]) -> list[Caution]:
    """Options that change memory in a way that no rule here counts: named, not silently passed over."""
    known = table().flags
    names = [f"--{name}" for name, value in extra.items() if name in known and known[name].uncounted and value]
    if not names:
        return []
    return [Caution(code="not-counted", message=f"{', '.join(names)}: what this changes in memory is not counted yet")]


def _options(settings: Settings, extra: dict[str, Any]) -> ServeOptions:
    given: dict[str, Any] = {}
    for setting in settings.by_name.values():
        owner, _, name = setting.flag.field.partition(".")
        if owner == "options":
            given[name] = setting.value
    sizes = read_capture_sizes(settings, extra)
    offload = given.get("cpu_offload_bytes")
    context = given.get("context")
    return ServeOptions(
        memory_fraction=_fraction(settings),
        kv_cache_bytes=given.get("kv_cache_bytes"),
        context=None if context == "auto" else context,
        max_seqs=given.get("max_seqs"),
        max_batched_tokens=given.get("max_batched_tokens"),
        block_size=given.get("block_size"),
        dtype=_dtype(given.get("dtype")),
        kv_dtype=_named(given.get("kv_dtype")),
        quantization=_named(given.get("quantization")),
        # Level 0 compiles nothing and captures no graphs, as --enforce-eager (config/vllm.py, OPTIMIZATION_LEVEL_00).
        eager=bool(given.get("eager", False)) or extra.get("optimization-level") == 0,
        prefix_caching=given.get("prefix_caching"),
        chunked_prefill=given.get("chunked_prefill"),
        cuda_graph_sizes=sizes,
        multimodal_limits=_limits(given.get("multimodal_limits"), extra),
        text_only=bool(given.get("text_only", False)),
        mamba_cache_mode=given.get("mamba_cache_mode"),
        cpu_offload_bytes=int(offload * GIB) if offload else 0,
        extra=extra,
    )


def _fraction(settings: Settings) -> float | None:
    for name in ("gpu-memory-utilization", "device-memory-utilization"):
        setting = settings.by_name.get(name)
        if setting is None:
            continue
        value = float(setting.value)
        if not 0 < value <= 1:
            remedy = f"give {value / 100:g}" if 1 < value <= 100 else "give a share above 0 and at most 1, such as 0.9"
            raise InputError(f"{setting.shown} {setting.value:g} is not a share of the card's memory; {remedy}")
        return value
    return None


def _dtype(value: str | None) -> str | None:
    if value is None or value == "auto":
        return None
    if value not in _KNOWN_DTYPES:
        raise InputError(f"--dtype {shorten(value)!r} is none of {', '.join(_KNOWN_DTYPES)}")
    return _DTYPES.get(value, value)


def _named(value: str | None) -> str | None:
    return None if value is None or value in ("auto", "None", "") else value


def _limits(value: Any, extra: dict[str, Any]) -> Mapping[str, int] | None:
    """Items of each kind a prompt may hold; the newer form with sizes (``{"video": {"count": 1, …}}``) stays in extra."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or len(value) > 64:
        raise InputError(f'--limit-mm-per-prompt {shorten(str(value))!r} is not a JSON object such as {{"image": 2}}')
    limits = {}
    for kind, limit in value.items():
        number = limit.get("count") if isinstance(limit, Mapping) else limit
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 2**20:
            raise InputError(
                f"--limit-mm-per-prompt {shorten(str(kind))} {shorten(str(limit))!r} is not a count from 0"
            )
        limits[str(kind)] = number
    if any(isinstance(limit, Mapping) for limit in value.values()):
        extra["limit-mm-per-prompt"] = dict(value)
    return limits


def _facts(settings: Settings, environment: Mapping[str, str], image: str | None) -> dict[str, Any]:
    kept = {name: value for name, value in environment.items() if _KEPT.fullmatch(name) and not _SECRET.search(name)}
    facts: dict[str, Any] = {
        "environment": kept,
        "server": {name: one.value for name, one in settings.by_name.items() if one.flag.field == "server"},
    }
    if image is not None:
        facts["image"] = image
    for name in _VISIBLE:
        devices = environment.get(name, "all")
        if devices not in ("all", "none", "void", ""):
            facts["gpus_visible"] = len([device for device in devices.split(",") if device.strip()])
            break
    return facts


def _check_visible(layout: Layout, facts: Mapping[str, Any], extra: Mapping[str, Any], cautions: list[Caution]) -> None:
    """One node that shows fewer GPUs than the layout takes cannot start; several nodes are not judged here."""
    visible = facts.get("gpus_visible")
    several = extra.get("nnodes", 1) > 1 or "data-parallel-size-local" in extra or "data-parallel-rank" in extra
    ray = extra.get("distributed-executor-backend") == "ray"
    if visible is not None and not several and not ray and layout.gpus > visible:
        message = f"the layout takes {layout.gpus} GPUs where the command shows {visible}"
        cautions.append(Caution(code="too-few-visible", message=message))
