"""A machine and what it runs, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trilemma.quantities import counted, show_count, show_gib
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped

if TYPE_CHECKING:
    from trilemma.machine.answer import CardsHere, RunsHere, WhatRuns

#: Commands, and names of models that do not fit, that a screen shows.
_MOST_COMMANDS, _MOST_NAMES = 12, 24
_PATIENT = 0.9  # a card of which less is free is in use


def render_here(found: WhatRuns, *, width: int) -> str:
    """Cards first, then a table of models and one command each; what could not be seen at the end."""
    parts = ["\n".join(_machine(found, width))]
    if found.runs:
        parts.append(_table(found, width))
        shown = found.runs if len(found.runs) <= _MOST_COMMANDS else found.runs[:1]
        parts.append("\n".join(["run one", *(f"  {run.command}" for run in shown)]))
    if found.too_large:
        unfit = ", ".join(found.too_large)
        if len(found.too_large) > _MOST_NAMES:
            unfit = f"{counted(len(found.too_large), 'model')} of the catalogue, or not served this way (in --json)"
        parts.append("\n".join(wrapped(f"does not fit: {unfit}", width, subsequent_indent="  ")))
    if not found.runs:
        parts.append("\n".join(wrapped(_nothing(found), width)))
    if found.unseen:
        told = [
            line for one in found.unseen for line in wrapped(f"- {one.what}: {one.why}", width, subsequent_indent="  ")
        ]
        parts.append("\n".join(["not seen", *told]))
    return "\n\n".join(parts)


def _machine(found: WhatRuns, width: int) -> list[str]:
    lines = []
    for cards in found.cards:
        lines += wrapped(_cards(cards), width, subsequent_indent="  ")
    if not found.cards:
        lines.append("no GPU" if found.recorded else "no GPU on this machine")
    around = []
    if found.host_memory_bytes:
        around.append(f"{show_gib(found.host_memory_bytes, digits=1)} GiB of host memory")
    if found.driver:
        around.append(f"driver {found.driver}")
    return [*lines, *([", ".join(around)] if around else [])]


def _cards(cards: CardsHere) -> str:
    text = f"{cards.count} x {cards.name}"
    if cards.memory_bytes:
        text += f", {show_gib(cards.memory_bytes, digits=1)} GiB each"
        if cards.free_bytes is not None and cards.free_bytes < _PATIENT * cards.memory_bytes:
            text += f" ({show_gib(cards.free_bytes, digits=1)} GiB free)"
    if cards.id is not None:
        text += f": {cards.id}"
    if cards.sliced:
        text += "; cut into MIG slices, which are not estimated"
    return text + (f"; {cards.note}" if cards.note else "")


def _table(found: WhatRuns, width: int) -> str:
    headers = ("model", "weights", "GiB", "context", "GPUs", "engine", "tokens/s", "90 %")
    rows = [_row(run) for run in found.runs]
    title = f"one reader, {found.isl:,} tokens in and {found.osl:,} out; context: the longest that fits, up to the model's own"
    title += "; + host: a part lies in the memory of the host\n" if any(run.on_host for run in found.runs) else "\n"
    return title + render_table(
        headers, rows, align="llrrrlrr", width=width, whole=("model",), yields=("90 %", "engine", "GPUs")
    )


def _row(run: RunsHere) -> tuple[str, ...]:
    speed = run.tokens_per_s
    weights = f"{run.weights} + host" if run.on_host else run.weights
    return (
        run.model, weights, f"{run.weights_bytes / 2**30:.1f}", show_count(run.max_context), str(run.gpus), run.engine,
        f"{speed.value:.3g}", f"{speed.low:.3g} – {speed.high:.3g}",
    )  # fmt: skip


def _nothing(found: WhatRuns) -> str:
    if not found.cards:
        return (
            "Estimates are of accelerators: no model's speed on a processor alone is known here. Name cards to ask about others,"
            " such as trilemma plan llama-3.1-8b --gpu rtx-4090 --serve 1024/256."
        )
    if all(cards.id is None for cards in found.cards):
        return "Nothing is known here of the cards above; give --gpu an accelerator file to ask about them."
    return "None of the models tried fits."
