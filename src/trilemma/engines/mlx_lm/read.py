"""An ``mlx_lm.server`` or ``mlx_lm.generate`` command to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trilemma.commands.command_line import read_settings
from trilemma.engines.base import EngineCommand
from trilemma.engines.in_force import put_in_force, uncounted
from trilemma.engines.launch import named_model, take_apart
from trilemma.engines.mlx_lm.flags import table
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that ``mlx_lm.server --model MODEL flags…`` asks for; a generator answers one request. Raises `InputError`."""
    words = [str(word) for word in argv]
    launch = take_apart(words, engine="mlx-lm", subcommands=())
    settings = read_settings(launch.words, table(), config_flag=False)
    warnings = put_in_force(settings, table(), version)
    model = named_model(settings, warnings, engine="mlx_lm", remedy="give mlx_lm.server --model MODEL")
    extra: dict[str, Any] = {n: one.value for n, one in settings.by_name.items() if one.flag.field == "extra"}
    warnings += uncounted(extra, table())
    serves = any(word.endswith("server") for word in words[: len(words) - len(launch.words)])
    options = ServeOptions(
        context=settings.value("max-kv-size"),
        max_seqs=settings.value("decode-concurrency") if serves else 1,
        max_batched_tokens=settings.value("prefill-step-size"),
        extra=extra,
    )
    facts = launch.facts(settings)
    facts["gpus"] = 1
    return EngineCommand(
        model=model,
        plan=Plan(engine=EngineRef(name="mlx-lm", version=version), pools=(Pool(layout=Layout(), options=options),)),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        warnings=tuple(warnings),
        facts=facts,
    )
