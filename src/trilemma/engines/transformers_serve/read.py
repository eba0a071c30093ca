"""``transformers serve`` read to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trilemma.commands.command_line import read_settings
from trilemma.engines.base import EngineCommand
from trilemma.engines.in_force import put_in_force, uncounted
from trilemma.engines.launch import EVERY_CARD, named_model, share_of_card, take_apart
from trilemma.engines.transformers_serve.flags import table
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that ``transformers serve MODEL flags…`` asks for; it takes every card unless ``--device`` names one.

    Raises `InputError` naming flag, value and remedy.
    """
    launch = take_apart([str(word) for word in argv], engine="transformers-serve")
    settings = read_settings(launch.words, table(), config_flag=False)
    warnings = put_in_force(settings, table(), version)
    model = named_model(settings, warnings, engine="transformers serve", remedy="give transformers serve MODEL")
    extra: dict[str, Any] = {n: one.value for n, one in settings.by_name.items() if one.flag.field == "extra"}
    warnings += uncounted(extra, table())
    fraction, dtype = settings.by_name.get("cb-max-memory-percent"), settings.value("dtype")
    facts = launch.facts(settings)
    visible = facts.get("gpus_visible")
    one = str(extra.get("device", "auto")) not in ("auto", "cuda")
    facts["gpus"] = 1 if one else int(visible) if visible else EVERY_CARD
    options = ServeOptions(
        memory_fraction=None if fraction is None else share_of_card(float(fraction.value), shown=fraction.shown),
        max_batched_tokens=settings.value("cb-max-batch-tokens"),
        block_size=settings.value("cb-block-size"),
        dtype=None if dtype in (None, "auto") else str(dtype),
        quantization=settings.value("quantization"),
        extra=extra,
    )
    number = facts["gpus"] if isinstance(facts["gpus"], int) else 1
    return EngineCommand(
        model=model,
        plan=Plan(
            engine=EngineRef(name="transformers-serve", version=version),
            pools=(Pool(layout=Layout(pp=number), options=options),),
        ),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        warnings=tuple(warnings),
        facts=facts,
    )
