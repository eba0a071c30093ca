"""A vLLM command line to a plan: every flag that changes memory, layout, speed or start-up gets its meaning here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.commands.command_line import FlagSettings
from trilemma.engines.base import EngineCommand
from trilemma.engines.in_force import put_in_force, uncounted
from trilemma.engines.launch import check_visible, named_model, share_of_card, take_apart
from trilemma.engines.vllm.capture_sizes import read_capture_sizes
from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.settings import read_settings
from trilemma.engines.vllm.speculation import read_draft
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.quantities import GIB

#: Variables of the environment that change the memory plan; kept in ``extra`` under their own name.
VARIABLES = ("VLLM_USE_V1", "VLLM_ALLOW_LONG_MAX_MODEL_LEN")
_DTYPES = {"half": "float16", "float": "float32"}


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that a vLLM command asks for.

    ``argv``: ``[NAME=value…] vllm serve MODEL flags…``, ``python -m vllm.entrypoints.openai.api_server --model …`` or
    ``[NAME=value…] vllm/vllm-openai:TAG flags…`` (a version in the tag becomes the plan's engine version), as
    `trilemma.engines.extract.extract` gives them. Unknown flags are named, not fatal. ``facts`` hold ``environment``,
    ``server`` (flags without effect on the plan), ``gpus_visible`` where the command says so, and ``image``. Raises
    `InputError` naming flag, value and remedy.
    """
    launch = take_apart([str(word) for word in argv], engine="vllm")
    version = version or _version_of(launch.image)
    settings = read_settings(launch.words)
    warnings = put_in_force(settings, table(), version)
    model = named_model(settings, warnings, engine="vLLM", remedy="give vllm serve MODEL or --model MODEL")
    layout = _layout(settings)
    draft, draft_rest, draft_warnings = read_draft(settings)
    warnings += draft_warnings
    extra = _extra(settings, layout, version)
    extra.update({name: launch.environment[name] for name in VARIABLES if name in launch.environment})
    options = _options(settings, extra)
    if draft_rest:
        extra["speculative-config"] = draft_rest
    warnings += uncounted(options.extra, table())
    facts = launch.facts(settings)
    _check_visible(layout, facts, extra, warnings)
    pool = Pool(layout=layout, options=options, draft=draft)
    return EngineCommand(
        model=model,
        plan=Plan(engine=EngineRef(name="vllm", version=version), pools=(pool,)),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        warnings=tuple(warnings),
        facts=facts,
    )


def _version_of(image: str | None) -> str | None:
    """The version in an image's tag (``:v0.19.0-cu130``); None for ``latest``, ``nightly`` and other makers' numbers."""
    if image is None or not re.search(r"(^|/)vllm-openai[\w-]*:", image):
        return None
    match = re.search(r":v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?(?:\.?(?:post|rc|dev)\d{1,6})*)", image)
    return match.group(1) if match else None


def _layout(settings: FlagSettings) -> Layout:
    degrees = {
        setting.flag.field.removeprefix("layout."): setting.value
        for setting in settings.by_name.values()
        if setting.flag.field.startswith("layout.") and setting.flag.field != "layout.ep"
    }
    spread = bool(settings.value("enable-expert-parallel"))
    # vLLM spreads experts over every rank of a pipeline stage (FusedMoEParallelConfig: ep = tp · dp · pcp).
    group = degrees.get("tp", 1) * degrees.get("dp", 1) * degrees.get("cp", 1)
    return Layout(**degrees, ep=group if spread else 1)


def _extra(settings: FlagSettings, layout: Layout, version: str | None) -> dict[str, Any]:
    """Options without a field. A flag that the version has not is left out, as its warning says."""
    at = table().at(version)
    extra: dict[str, Any] = {}
    for name, setting in settings.by_name.items():
        if setting.flag.field == "extra" and setting.flag.exists_at(at):
            extra[name] = setting.value
    _check_objects(extra)
    if settings.value("max-model-len") == "auto":
        extra["max-model-len"] = "auto"
    if settings.value("enable-expert-parallel") and layout.ep == 1:
        extra["enable-expert-parallel"] = True
    return extra


def _check_objects(extra: Mapping[str, Any]) -> None:
    for name in ("hf-overrides", "eplb-config"):
        if extra.get(name) is not None and not isinstance(extra[name], Mapping):
            raise InputError(f"--{name} {shorten(str(extra[name]))!r} is not a JSON object; give one such as {{}}")
    # Bounds of EPLBConfig (vllm/config/parallel.py): copies of experts beside one each, and steps.
    for key, least in (("num_redundant_experts", 0), ("window_size", 1), ("step_interval", 1)):
        value = (extra.get("eplb-config") or {}).get(key, least)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(
                f"--eplb-config {key} {shorten(str(value))} is out of range; give a whole number of at least {least}"
            )


def _options(settings: FlagSettings, extra: dict[str, Any]) -> ServeOptions:
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


def _fraction(settings: FlagSettings) -> float | None:
    for name in ("gpu-memory-utilization", "device-memory-utilization"):
        setting = settings.by_name.get(name)
        if setting is not None:
            return share_of_card(float(setting.value), shown=setting.shown)
    return None


def _dtype(value: str | None) -> str | None:
    return None if value is None or value == "auto" else _DTYPES.get(value, value)


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


def _check_visible(
    layout: Layout, facts: Mapping[str, Any], extra: Mapping[str, Any], warnings: list[PlanWarning]
) -> None:
    """Several nodes are not judged here."""
    several = extra.get("nnodes", 1) > 1 or "data-parallel-size-local" in extra or "data-parallel-rank" in extra
    if not several and extra.get("distributed-executor-backend") != "ray":
        check_visible(layout, facts, warnings)
