"""Seconds of a whole round of reinforcement: what comes on top of its update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, PlanWarning
from trilemma.estimate.estimate import Estimate

_CODE = "update-only"


def with_round(warnings: Iterable[PlanWarning], update: Estimate, generated: int | None) -> tuple[PlanWarning, ...]:
    """``warnings`` with what a round of ``update`` takes in the words of the one that says what its seconds leave out, where the
    command says how long answers may get (``generated`` tokens)."""
    told = tuple(warnings)
    if generated is None or not any(one.code == _CODE for one in told):
        return told
    seconds = round_seconds(update, generated)
    if seconds is None:
        return told
    text = (
        f"seconds are those of the update; a whole round takes {seconds['value']:.3g} s ({seconds['low']:.3g} –"
        f" {seconds['high']:.3g}): two passes of frozen models {seconds['passes']:.3g} s,"
        f" {update.question.workload.global_batch:,} answers of {generated:,} tokens {seconds['generation']:.3g} s on an engine"
        " of these cards, and what public rounds took beyond"
    )
    return tuple(replace(one, message=text) if one.code == _CODE else one for one in told)


def round_seconds(update: Estimate, generated: int) -> Mapping[str, float] | None:
    """Parts of a round and its range in seconds; None where no engine holds the model on these cards."""
    load, plan = update.question.workload, update.question.plan
    batches = float(plan.micro_batches(load))
    passes = 2 * float(update.training_step["micro_batch_s"]["forward"]) * batches
    generation = _generation_s(update, min(generated, load.seq - 1))
    if generation is None:
        return None
    row: Mapping[str, Any] = read_data("coefficients/training_step.toml")["rounds"]
    step = update.speed.step_s if update.speed is not None else None
    if step is None:
        return None
    counted = float(step.interval.value) + passes + generation
    return {
        "passes": passes, "generation": generation,
        **{name: counted * float(row[share]) for name, share in (("value", "middle"), ("low", "low"), ("high", "high"))},
    }  # fmt: skip


def _generation_s(update: Estimate, generated: int) -> float | None:
    """Seconds in which an engine on the same cards generates the answers of a round, all at once, over as few cards an engine
    as hold the model."""
    from trilemma.ask.questions import fit

    question = update.question
    cluster, load = question.cluster, question.workload
    for tp in (1, 2, 4, 8):
        if cluster.gpus % tp:
            break
        try:
            found = fit(
                question.model, f"{cluster.accelerator.id}:{cluster.gpus}", tp=tp, dp=cluster.gpus // tp,
                isl=max(load.seq - generated, 1), osl=generated, concurrency=load.global_batch,
            )  # fmt: skip
        except InputError:
            continue
        if found.fits and found.speed is not None and found.speed.output_tokens_per_s is not None:
            return float(load.global_batch * generated / found.speed.output_tokens_per_s.value)
    return None
