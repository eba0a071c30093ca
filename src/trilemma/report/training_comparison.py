"""GPUs side by side for one training job, for people and as ``trilemma/training-comparison@1``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trilemma.quantities import show_count, show_usd
from trilemma.report.document import estimate_document
from trilemma.report.plan_words import memory_bar
from trilemma.report.tables import render_table
from trilemma.report.training import run_costs
from trilemma.report.training_plans import seconds, workload_words
from trilemma.report.wrapping import wrapped
from trilemma.search.compare_training import TrainingCandidate, TrainingComparison

TRAINING_COMPARISON_SCHEMA = "trilemma/training-comparison@1"
_HEADERS = (
    "GPUs", "plan", "step s", "90 % range", "tok/s/GPU", "tok/s", "MFU", "$/M tok", "$/h", "memory per GPU", "sure", "run",
)  # fmt: skip
#: Columns that give way where the window is narrow, the first first.
_YIELDS = ("MFU", "memory per GPU", "tok/s", "90 % range", "$/h", "sure")


def render_training_comparison(comparison: TrainingComparison, *, model: str, width: int) -> str:
    """A row for each kind of GPU, and what would hold the job where its number does not."""
    parts = wrapped(f"{model}: {workload_words(comparison.workload)}, on each GPU its best plan", width)
    rows = [_row(one) for one in comparison.candidates]
    headers = [name for name in _HEADERS if name != "run" or comparison.workload.tokens]
    table = render_table(
        headers, [row[: len(headers)] for row in rows], align="llrrrrrrrlrl", width=width, yields=_YIELDS
    )
    parts += ["", *table.splitlines()]
    notes = [words for one in comparison.candidates for words in _notes(one)]
    for words in dict.fromkeys(notes):
        parts += wrapped(words, width, initial_indent="note: ", subsequent_indent="      ")
    return "\n".join(parts)


def training_comparison_document(comparison: TrainingComparison, *, explain: bool) -> dict[str, Any]:
    """``{"schema", "model", "workload", "candidates": [{"accelerator", "gpus", "fits", "least_gpus", "best": estimate}]}``."""
    load = comparison.workload
    return {
        "schema": TRAINING_COMPARISON_SCHEMA,
        "model": comparison.model.name,
        "workload": {"seq": load.seq, "global_batch": load.global_batch, "method": load.method, "tokens": load.tokens},
        "candidates": [_candidate(one, explain) for one in comparison.candidates],
    }


def _candidate(one: TrainingCandidate, explain: bool) -> dict[str, Any]:
    card = one.cluster.accelerator
    found: dict[str, Any] = {
        "accelerator": {"id": card.id, "name": card.name}, "gpus": one.cluster.gpus, "fits": one.best is not None,
        "least_gpus": one.least_gpus, "refused": one.refused or None,
        "best": None if one.best is None else estimate_document(one.best, explain=explain),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _row(one: TrainingCandidate) -> list[str]:
    name = f"{one.cluster.gpus} x {one.cluster.accelerator.name}"
    best = one.best
    if best is None or best.speed is None or best.speed.step_s is None or best.speed.tokens_per_s_per_gpu is None:
        enough = f"does not fit, {show_count(one.least_gpus)} GPUs hold it" if one.least_gpus else "does not fit"
        return [name, one.refused or enough, *["–"] * 10]
    step, rate, mfu = best.speed.step_s.interval, best.speed.tokens_per_s_per_gpu, best.speed.mfu
    dollars, hour = best.usd_per_million_tokens, best.usd_per_hour
    days = best.training_run.get("days", {}).get("value")
    return [
        name,
        best.summary,
        seconds(step.value),
        f"{seconds(step.low)} – {seconds(step.high)}",
        show_count(rate.value),
        show_count(rate.value * one.cluster.gpus),
        "–" if mfu is None else f"{mfu.value:.1%}",
        "–" if dollars is None else f"${show_usd(dollars.value)}",
        "–" if hour is None else f"${hour.value:,.2f}",
        memory_bar(best),
        f"{best.verdict.probability:.0%}",
        "–" if days is None else ", ".join([f"{days:,.1f} days", *run_costs(best.training_run)]),
    ]


def _notes(one: TrainingCandidate) -> Iterator[str]:
    for warning in one.best.warnings if one.best is not None else ():
        yield warning.message
