"""Serving-memory tables: what an engine prints when it starts, against what we say it would; and whether it starts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from trilemma import engines
from trilemma.engines.base import Stage, StartUp
from trilemma.errors import InputError, with_flags
from trilemma.estimate.doubt import doubted, of_model, of_served_class
from trilemma.estimate.estimate import Verdict
from trilemma.measured.judgement import Judgement, StartVerdict
from trilemma.measured.serving.memory.classes import classes_of, config_of, resolved_cell
from trilemma.measured.serving.memory.figures import METRICS, JudgedRow, figures, given_bytes_only
from trilemma.measured.serving.memory.fit import FITTED_FILE, refit
from trilemma.measured.serving.memory.question import StartQuestion, read_question
from trilemma.measured.serving.memory.start import replace_weights, stage_of, start_of
from trilemma.measured.tables import Row, UnusableRow
from trilemma.quantities import GIB

__all__ = ["METRICS", "STARTED", "judge"]

#: Outcome → whether the engine started. What fails later (oom_runtime) or otherwise (other) says nothing of starting.
STARTED = {"ok": True, "oom_load": False, "oom_profile": False, "kv_too_small": False, "oom_capture": False}
#: A row that names no length does not ask for any: the verdict then wants room for a request of this many tokens.
MODEST_CONTEXT = 2048


def judge(
    rows: Sequence[Row],
    *,
    models_dir: str | Path | None = None,
    holdout: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Judgement], dict[str, Any]]:
    """Judge every row; the second value is the ``holdout`` part of the document. A row never ends the run.

    With ``holdout`` every row is judged by coefficients refitted without the rows that share its values in these columns.
    """
    questions: list[StartQuestion | str] = []
    for row in rows:
        try:
            questions.append(read_question(row, models_dir))
        except (UnusableRow, InputError) as error:
            questions.append(with_flags(error))
    printed = _printed_weights(rows, questions)
    rows_of, document = refit(rows, questions, holdout) if holdout else ({}, {})
    judgements = []
    for index, (row, question) in enumerate(zip(rows, questions, strict=True)):
        if index in rows_of and isinstance(question, StartQuestion):
            question = replace(question, changed={FITTED_FILE: rows_of[index]})
        judgements.append(_judged(row, question, printed))
        if progress is not None:
            progress(index + 1)
    return judgements, document


def _judged(row: Row, question: StartQuestion | str, printed: dict[Any, list[float]]) -> Judgement:
    if isinstance(question, str):
        return Judgement(row_id=row.id, cells=row.cells, skipped=question)
    assumed = list(question.assumed)
    try:
        case = JudgedRow(
            row=row, question=question, start=start_of(question), own_weights=not question.weights_unstated, left_out=[]
        )
        verdict = None
        if case.own_weights:
            comparisons, verdict = figures(case), _verdict(case, None, assumed)
        else:
            case.left_out.append(f"weights_gib_per_gpu: {question.quantization} does not state its bits")
            weights = _stated_weights(row, question, printed, assumed)
            if weights is None:
                case.left_out.append("verdict: no row prints the weights of this checkpoint and layout")
                comparisons = given_bytes_only(case)
            else:
                told = replace_weights(case.start, question, weights * GIB)
                comparisons = figures(replace(case, start=told))
                verdict = _verdict(case, weights, assumed)
    except (UnusableRow, InputError) as error:
        return Judgement(row_id=row.id, cells=row.cells, skipped=with_flags(error))
    assumed += [warning.message for warning in case.start.warnings]
    return Judgement(
        row_id=row.id,
        cells={column: resolved_cell(row, question, column) for column in row.cells},
        classes=classes_of(row, question, case.start),
        comparisons=tuple(comparisons),
        start=verdict,
        config=config_of(question),
        order_group=f"{row.text('source')} {row.text('model')}",
        order_metric="kv_cache_tokens",
        assumed=tuple(dict.fromkeys(assumed)),
        left_out=tuple(dict.fromkeys(case.left_out)),
        skipped="" if comparisons or verdict else "states no figure and no outcome that can be judged",
    )


def _printed_weights(rows: Sequence[Row], questions: Sequence[StartQuestion | str]) -> dict[Any, list[float]]:
    """Printed weights by checkpoint, layout and draft as stated: what a row that does not print its own is given."""
    found: dict[Any, list[float]] = {}
    for row, question in zip(rows, questions, strict=True):
        if isinstance(question, StartQuestion) and question.weights_unstated:
            try:
                weights = row.number("weights_gib_per_gpu", low=0.01, high=65536)
            except UnusableRow:
                continue
            if weights is not None:
                found.setdefault(_checkpoint(row, question), []).append(weights)
    return found


def _checkpoint(row: Row, question: StartQuestion) -> tuple[Any, ...]:
    layout = question.layout
    return (row.text("model"), layout.tp, layout.pp, layout.ep, row.text("spec_decode").lower())


def _stated_weights(
    row: Row, question: StartQuestion, printed: dict[Any, list[float]], assumed: list[str]
) -> float | None:
    """GiB of weights as this row prints them, else the median of what others of the same checkpoint and layout print."""
    weights = row.number("weights_gib_per_gpu", low=0.01, high=65536)
    if weights is not None:
        assumed.append(f"weights {weights:g} GiB as the row prints them")
        return weights
    others = printed.get(_checkpoint(row, question))
    if not others:
        return None
    weights = statistics.median(others)
    assumed.append(f"weights {weights:g} GiB as other rows of this checkpoint and layout print them")
    return weights


def _beside_doubt(question: StartQuestion, start: StartUp, stage: str, counted_ok: float) -> float:
    """The probability of "ok" that is left beside what was assumed and never measured, as an estimate tells it."""
    told = (
        *start.warnings,
        *of_model(question.model),
        *of_served_class(question.engine, question.model, question.accelerator),
    )
    fits = stage == "ok"
    verdict = Verdict(stage=cast(Stage, stage), probability=counted_ok if fits else 1 - counted_ok, reason="")
    sure = doubted(verdict, told).probability
    return sure if fits else 1 - sure


def _verdict(case: JudgedRow, weights_gib: float | None, assumed: list[str]) -> StartVerdict | None:
    outcome = case.row.text("outcome").lower()
    if outcome not in STARTED:
        if outcome:
            case.left_out.append(f"verdict: outcome {outcome!r} does not say whether the engine started")
        return None
    question, start = case.question, case.start
    asks_for_length = question.context_stated and not engines.traits_of(question.engine).starts_below_context
    if not asks_for_length and start.context > MODEST_CONTEXT:
        options = replace(question.options, context=MODEST_CONTEXT, max_batched_tokens=start.max_batched_tokens)
        question = replace(question, options=options)
        start = start_of(question)
        why = "the engine starts with less than the length" if question.context_stated else "no length stated"
        assumed.append(f"verdict: {why}, so room for {MODEST_CONTEXT} tokens is asked for")
    if weights_gib is not None:
        start = replace_weights(start, question, weights_gib * GIB)
    stage, counted_ok = stage_of(start)
    probability_ok = _beside_doubt(question, start, stage, counted_ok)
    return StartVerdict(
        predicted=stage == "ok",
        started=STARTED[outcome],
        stage=stage,
        outcome=outcome,
        probability_ok=probability_ok,
    )
