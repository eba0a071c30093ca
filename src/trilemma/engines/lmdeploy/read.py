"""An ``lmdeploy serve api_server`` command to a plan."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trilemma.commands.command_line import FlagSettings, read_settings
from trilemma.engines.base import EngineCommand
from trilemma.engines.in_force import put_in_force, uncounted
from trilemma.engines.launch import check_visible, named_model, take_apart
from trilemma.engines.lmdeploy.facts import policy_of
from trilemma.engines.lmdeploy.flags import table
from trilemma.errors import InputError
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions

_METHODS = {"deepseek_mtp": "mtp", "hy3_mtp": "mtp", "qwen3_5_mtp": "mtp", "eagle": "eagle3", "eagle3": "eagle3"}


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that ``lmdeploy serve api_server MODEL flags…`` asks for. Raises `InputError` naming flag, value and remedy."""
    launch = take_apart(
        [str(word) for word in argv], engine="lmdeploy", subcommands=("lmdeploy", "serve", "api_server")
    )
    words = launch.words
    while launch.image is not None and words and words[0] in ("lmdeploy", "serve", "api_server"):
        words = words[1:]
    version = version or _version_of(launch.image)
    settings = read_settings(words, table(), config_flag=False)
    warnings = put_in_force(settings, table(), version)
    model = named_model(settings, warnings, engine="lmdeploy", remedy="give lmdeploy serve api_server MODEL")
    extra = {name: one.value for name, one in settings.by_name.items() if one.flag.field == "extra"}
    warnings += uncounted(extra, table())
    layout = Layout(**{name: settings.value(name) or 1 for name in ("tp", "dp", "ep", "cp")})
    facts = launch.facts(settings)
    check_visible(layout, facts, warnings)
    draft = _draft(extra)
    return EngineCommand(
        model=model,
        plan=Plan(
            engine=EngineRef(name="lmdeploy", version=version),
            pools=(Pool(layout=layout, options=_options(settings, extra), draft=draft),),
        ),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        warnings=tuple(warnings),
        facts=facts,
    )


def _version_of(image: str | None) -> str | None:
    """The version in the tag of the maker's image (``openmmlab/lmdeploy:v0.9.2-cu12``)."""
    match = re.search(r"lmdeploy:v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)", image or "")
    return match.group(1) if match else None


def _options(settings: FlagSettings, extra: dict[str, object]) -> ServeOptions:
    fraction, dtype = settings.value("cache-max-entry-count"), settings.value("dtype")
    if fraction is not None and (fraction <= 0 or (fraction > 1 and fraction != int(fraction))):
        raise InputError(
            f"--cache-max-entry-count {fraction:g} is neither a share below 1 nor a number of blocks; give 0.8"
        )
    policy = policy_of(settings.value("quant-policy"))
    return ServeOptions(
        memory_fraction=fraction,
        context=settings.value("session-len"),
        max_seqs=settings.value("max-batch-size"),
        max_batched_tokens=settings.value("max-prefill-token-num"),
        block_size=settings.value("cache-block-seq-len"),
        dtype=None if dtype in (None, "auto") else str(dtype),
        kv_dtype={"4": "int4", "8": "int8", "16": "fp8_e4m3", "17": "fp8_e5m2"}.get(policy or ""),
        eager=bool(settings.value("eager-mode")),
        prefix_caching=True if settings.value("enable-prefix-caching") else None,
        text_only=bool(settings.value("language-model-only")),
        extra=extra,
    )


def _draft(extra: dict[str, object]) -> Draft | None:
    method = extra.pop("speculative-algorithm", None)
    if method is None:
        return None
    model = extra.pop("speculative-draft-model", None)
    tokens = extra.pop("speculative-num-draft-tokens", 1)
    named = _METHODS.get(str(method), str(method)[:60])
    return Draft(method=named, tokens=int(str(tokens)), model=None if model is None else str(model))
