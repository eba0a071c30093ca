"""What a machine runs: its cards, and of models that people run those that fit, with which engine, how fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trilemma.ask.answers import Shown
from trilemma.data.files import read_data
from trilemma.engines.cards import that_run_on
from trilemma.errors import InputError
from trilemma.hardware.gpu_argument import parse_gpu_argument
from trilemma.machine.answer import CardsHere, RunsHere, WhatRuns
from trilemma.machine.machine import Card, SeenMachine, recorded_machine, this_machine
from trilemma.models.catalogue import names
from trilemma.quantities import GIB

if TYPE_CHECKING:
    from trilemma.ask.answers import Answer
    from trilemma.hardware.accelerator import Accelerator

#: A model's weights beyond this share of all cards' memory are not tried.
_WEIGHTS_SHARE = 0.95
#: The part of a host's memory that weights may fill.
_HOST_SHARE = 0.8
_MOST_HOST_GIB = 2.0**20


class Here(Shown, WhatRuns):
    """What runs on a machine, as an answer that shows itself."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether a model of those tried runs."""
        return bool(self.runs)

    def screen(self, *, explain: bool, width: int) -> str:  # noqa: ARG002
        from trilemma.report.here import render_here

        return render_here(self, width=width)


def here(
    outputs: str | Path | Sequence[str | Path] | None = None,
    *,
    gpu: str | None = None,
    every: bool = False,
    models: str | None = None,
    host_memory: float | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Here:
    """What this machine runs, the one whose tools printed ``outputs`` (files or folders), or one with the cards of ``gpu``
    (``rtx-4090:2``); of models that people run, or of ``every`` one in the catalogue, the largest first.
    ``progress`` is told how many models of how many were tried, and the next."""
    if gpu is not None:
        machine = _named(gpu, host_memory)
    elif host_memory is not None:
        raise InputError(
            "`host_memory` is of cards that are named; give `gpu` with it, or leave it out: it is seen here"
        )
    elif outputs is None or (not isinstance(outputs, str | Path) and not outputs):
        machine = this_machine()
    else:
        machine = recorded_machine([outputs] if isinstance(outputs, str | Path) else outputs)
    table = read_data("here.toml")
    if every:
        table = table | {
            "model": [{"name": name, "ways": table["ways"]} for name in names()],
            "most_shown": len(names()),
        }
    runs, too_large = _tried(machine, table, models, progress)
    if every:
        runs.sort(key=lambda run: (-run.weights_bytes, run.model))
    return Here(
        cards=tuple(_cards(machine)),
        host_memory_bytes=machine.host_memory_bytes,
        driver=machine.driver,
        runs=tuple(runs),
        too_large=tuple(too_large),
        unseen=machine.unseen if not machine.cards else (),
        isl=table["isl"],
        osl=table["osl"],
        recorded=machine.recorded,
    )


def which(
    gpu: str | None = None,
    *,
    models: str | None = None,
    host_memory: float | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Here:
    """Every model of the catalogue that runs on this machine, or on the cards of ``gpu``, the largest first; with
    ``host_memory`` (GiB beside named cards) those too of which a part lies there."""
    return here(gpu=gpu, every=True, models=models, host_memory=host_memory, progress=progress)


def _named(gpu: str, host_memory: float | None) -> SeenMachine:
    """A machine with the cards that are named, and ``host_memory`` GiB beside them."""
    if host_memory is not None and not 0 < host_memory < _MOST_HOST_GIB:
        raise InputError(f"`host_memory` {host_memory:g} is out of range; give GiB of the host, such as 64")
    card, count = parse_gpu_argument(gpu)
    total = card.nvml_total_bytes
    one = Card(name=card.name, part=card, memory_bytes=None if total is None else total.value)
    host_bytes = None if host_memory is None else host_memory * GIB
    return SeenMachine(cards=(one,) * count, host_memory_bytes=host_bytes, driver="", readings=(), recorded=True)


def _cards(machine: SeenMachine) -> list[CardsHere]:
    return [
        CardsHere(
            name=card.name,
            count=count,
            id=None if card.part is None else card.part.id,
            memory_bytes=card.memory_bytes,
            free_bytes=card.free_bytes,
            sliced=card.sliced,
            note="; ".join((card.why, *(one.message for one in card.warnings))).strip("; "),
        )
        for card, count in machine.kinds()
    ]


def _tried(
    machine: SeenMachine,
    table: dict[str, Any],
    models: str | None,
    progress: Callable[[int, int, str], None] | None,
) -> tuple[list[RunsHere], list[str]]:
    known = [(card, count) for card, count in machine.kinds() if card.part is not None and not card.sliced]
    if not known:
        return [], []
    card, count = max(known, key=lambda one: one[1] * (one[0].part.label_gb if one[0].part else 0))
    assert card.part is not None
    runs: list[RunsHere] = []
    too_large: list[str] = []
    there = that_run_on(card.part)
    for at, row in enumerate(table["model"]):
        if len(runs) == table["most_shown"]:
            break
        if progress is not None:
            progress(at, len(table["model"]), row["name"])
        # cards that none of the usual engines runs on are asked with those that do
        ways = [way for way in row["ways"] if way["engine"] in there] or [{"engine": name} for name in there]
        found = next(
            (one for way in ways if (one := _fitting(row["name"], way, card.word, count, table, models))), None
        )
        if found is None:
            found = next(
                (one for way in row["ways"] if (one := _beside(row["name"], way, card, count, machine, table, models))),
                None,
            )
        if found is None:
            too_large.append(row["name"])
        else:
            runs.append(found)
    if progress is not None:
        progress(len(table["model"]), len(table["model"]), "")
    return runs, too_large


def _fitting(
    model: str, way: dict[str, Any], card: str, count: int, table: dict[str, Any], models: str | None
) -> RunsHere | None:
    """The fewest cards, a power of two, on which a model fits this way."""
    from trilemma.ask.nouns import weights_of
    from trilemma.hardware.catalogue import find
    from trilemma.models.parameters import weight_bytes

    part = find(card)
    try:
        weights = weights_of(model, part, precision=way.get("precision"), models=models, engine=way["engine"])
    except InputError:
        return None
    size = float(weight_bytes(weights.model))
    if size > _published_bytes(model, way, part, models):
        return None
    gpus = 1
    while gpus <= count:
        if size < _WEIGHTS_SHARE * part.runtime_total().value * gpus:
            answer = _asked(model, way, f"{card}:{gpus}", table, models)
            if answer is not None and answer.fits and answer.command:
                return _run(model, way, answer, gpus, size)
        gpus *= 2
    return None


def _published_bytes(model: str, way: dict[str, Any], part: Accelerator, models: str | None) -> float:
    """Bytes of the weights as they are published for the engine of ``way``: what is wider is no way to make them fit."""
    from trilemma.ask.nouns import weights_of
    from trilemma.models.parameters import weight_bytes

    if way.get("precision") is None:
        return math.inf
    return float(weight_bytes(weights_of(model, part, precision=None, models=models, engine=way["engine"]).model))


def _beside(
    model: str,
    way: dict[str, Any],
    card: Card,
    count: int,
    machine: SeenMachine,
    table: dict[str, Any],
    models: str | None,
) -> RunsHere | None:
    """The model on all cards and, where they do not hold it, in the memory of the host too; None where that is not known."""
    from trilemma.ask.nouns import weights_of
    from trilemma.models.parameters import weight_bytes

    if machine.host_memory_bytes is None or card.part is None:
        return None
    try:
        weights = weights_of(model, card.part, precision=way.get("precision"), models=models, engine=way["engine"])
    except InputError:
        return None
    size = float(weight_bytes(weights.model))
    if size > card.part.runtime_total().value * count + _HOST_SHARE * machine.host_memory_bytes:
        return None
    answer = _asked(model, way, f"{card.word}:{count}", table, models)
    if answer is None or not answer.fits or not answer.uses_host or not answer.command:
        return None
    return _run(model, way, answer, count, size)


def _asked(model: str, way: dict[str, Any], gpu: str, table: dict[str, Any], models: str | None) -> Answer | None:
    """What `fit` answers, without what would mend a plan that does not start: the next way is tried instead."""
    from trilemma.ask.answers import Answer
    from trilemma.ask.options import FIT, settled
    from trilemma.ask.serving import question_of
    from trilemma.estimate.serving import estimate

    # a model that was not made for so long a context is asked for one request alone
    for context in (table["context"], table["isl"] + table["osl"]):
        options = {
            "engine": way["engine"], "precision": way.get("precision"), "models": models, "concurrency": 1,
            "isl": table["isl"], "osl": table["osl"], "context": context,
        }  # fmt: skip
        try:
            return Answer.of(estimate(question_of(model, gpu, settled(FIT, options))))
        except InputError:
            continue
    return None


def _run(model: str, way: dict[str, Any], answer: Answer, gpus: int, size: float) -> RunsHere | None:
    speed, cache = answer.speed, answer.cache
    if speed is None or speed.output_tokens_per_s is None:
        return None
    return RunsHere(
        model=model,
        engine=way["engine"],
        weights=way.get("precision") or "as published",
        gpus=gpus,
        command=answer.command or "",
        tokens_per_s=speed.output_tokens_per_s,
        max_context=int(cache.max_context) if cache is not None else 0,
        weights_bytes=size,
        on_host=answer.uses_host,
    )
