"""``transformers serve`` read to a plan, and a plan written as it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trilemma.commands.command_line import read_settings
from trilemma.commands.flags import FlagTable, read_table, words_of
from trilemma.engines import canonical
from trilemma.engines.base import EngineCommand
from trilemma.engines.launch import (
    EVERY_CARD,
    check_model_word,
    flag_cautions,
    named_model,
    share_of_card,
    take_apart,
    uncounted,
)
from trilemma.errors import InputError, shorten
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions


def table() -> FlagTable:
    """The shipped table, read once."""
    return read_table("transformers_serve_flags.toml", "Transformers", opposites=False, dotted=False, abbreviated=False)


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that ``transformers serve MODEL flags…`` asks for; it takes every card unless ``--device`` names one.

    Raises `InputError` naming flag, value and remedy.
    """
    launch = take_apart([str(word) for word in argv], engine="transformers-serve")
    settings = read_settings(launch.words, table(), config_flag=False)
    cautions = flag_cautions(settings, table(), version)
    model = named_model(settings, cautions, engine="transformers serve", remedy="give transformers serve MODEL")
    extra: dict[str, Any] = {n: one.value for n, one in settings.by_name.items() if one.flag.field == "extra"}
    cautions += uncounted(extra, table())
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
        cautions=tuple(cautions),
        facts=facts,
    )


def write(*, model: str, plan: Plan) -> list[str]:
    """``["transformers", "serve", model, flag, value, …]`` for a plan of one pool of cards in turn.

    Context, sequences and cache format have no flag: the longest request and the dtype decide them. Raises `InputError`.
    """
    if canonical(plan.engine.name) != "transformers-serve":
        raise InputError(f"the plan is for {shorten(plan.engine.name)}; this writes plans whose engine is transformers")
    pool, options = plan.pool, plan.pool.options
    degrees = [_whole(getattr(pool.layout, name)) for name in ("tp", "dp", "ep", "cp", "dcp")]
    if max(degrees) > 1:
        raise InputError("transformers serve puts layers on cards in turn (--pp) and splits nothing else")
    pairs: dict[str, Any] = {
        "dtype": options.dtype,
        "quantization": options.quantization,
        "cb-max-memory-percent": options.memory_fraction,
        "cb-max-batch-tokens": None if options.max_batched_tokens is None else _whole(options.max_batched_tokens),
        "cb-block-size": options.block_size,
    }
    pairs |= dict(options.extra)
    words = ["transformers", "serve", check_model_word(model)]
    for name, value in pairs.items():
        if value is None:
            continue
        flag = table().flags.get(name)
        if flag is None:
            raise InputError(
                f"transformers serve has no flag --{shorten(name)}; remove it from the plan's extra options"
            )
        words += words_of(flag, value)
    return words


def _whole(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.ndim:
        raise InputError("the plan is a table of plans; write takes one plan")
    return int(value)
