"""An ``lms load`` command to a plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trilemma.commands.command_line import read_settings
from trilemma.data.files import read_data
from trilemma.engines.base import EngineCommand
from trilemma.engines.in_force import put_in_force
from trilemma.engines.launch import EVERY_CARD, named_model, take_apart
from trilemma.engines.lm_studio.budget import layers_on_cards
from trilemma.engines.lm_studio.flags import table
from trilemma.models.naming import spell
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions


def read(argv: Sequence[str], *, version: str | None = None) -> EngineCommand:
    """The plan that ``lms load MODEL flags…`` asks for; a key with ``@q8_0`` names the mix, one without is Q4_K_M.

    Raises `InputError` naming flag, value and remedy.
    """
    launch = take_apart([str(word) for word in argv], engine="lm-studio", subcommands=())
    settings = read_settings(launch.words, table(), config_flag=False)
    warnings = put_in_force(settings, table(), version)
    model = named_model(settings, warnings, engine="lms load", remedy="give lms load MODEL")
    extra: dict[str, Any] = {n: one.value for n, one in settings.by_name.items() if one.flag.field == "extra"}
    layers_on_cards(extra.get("gpu"), 1)
    options = ServeOptions(context=settings.value("context-length"), max_seqs=settings.value("parallel"), extra=extra)
    facts = launch.facts(settings)
    visible = facts.get("gpus_visible")
    facts["gpus"] = int(visible) if visible else EVERY_CARD
    return EngineCommand(
        model=_weights_of(model),
        plan=Plan(
            engine=EngineRef(name="lm-studio", version=version),
            pools=(Pool(layout=Layout(pp=int(visible or 1)), options=options),),
        ),
        unknown_flags=tuple(dict.fromkeys(settings.unknown)),
        warnings=tuple(warnings),
        facts=facts,
    )


def _weights_of(key: str) -> str:
    """A model's key as weights: its mix where it names one, else that which LM Studio takes first."""
    name = re.sub(r"@([\w.]+)$", r":\1", key)
    local = name.startswith((".", "/", "~")) or name.lower().endswith(".gguf")
    if local or spell(name).scheme is not None or _published_narrow(name):
        return name
    return f"{name}-q4_k_m" if ":" in name else f"{name}:q4_k_m"


def _published_narrow(name: str) -> bool:
    """Whether a model is published in a narrow format of its own, which its file keeps."""
    own = name.rpartition("/")[2].partition(":")[0].lower()
    return own.startswith(tuple(read_data("engines/lm_studio.toml")["library"]["as_published"]))
