"""Energy tables: the rate of a run, its joules a token and watts a card, as measured against what we say.

Rates are judged as rows of serving speed are, by the same questions. Joules are judged twice: from our own rate, and
(``j_per_output_token_given_rate``) from the rate that the row states, which leaves the error of the watts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.errors import InputError
from trilemma.measured.judgement import FigureComparison, Judgement
from trilemma.measured.serving.energy.activities import at_rate, columns_of_rows
from trilemma.measured.serving.energy.fit import FittedPower, PowerRows, fit_power, predicted_shares
from trilemma.measured.serving.speed import judge as speed
from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.measured.serving.speed.refit import read_questions
from trilemma.measured.tables import Row, UnusableRow
from trilemma.quantities import Array
from trilemma.timing import serving_terms
from trilemma.timing.power import PowerTerms, power_terms
from trilemma.timing.serving_terms import chips_of

RATE, JOULES, WATTS = "output_tok_s_total", "j_per_output_token", "power_w_per_gpu"
GIVEN = f"{JOULES}_given_rate"
#: A phase run alone and the metric of its rate, which the table prints in the column of all rates.
_PHASES = {"prefill": "prefill_tok_s", "decode": "decode_tok_s"}
METRICS = (*speed.METRICS, JOULES, WATTS, GIVEN)
GROUPS, CLASSES = speed.GROUPS, speed.CLASSES


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """Rows read as questions of speed: ``columns`` (rows, power terms) are what their cards do at our own rate."""

    rows: tuple[Row, ...]
    questions: Sequence[SpeedQuestion | str]
    columns: Array


def judge(
    rows: Sequence[Row],
    *,
    models_dir: str | Path | None = None,
    holdout: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Judgement], dict[str, Any]]:
    """Judge every row; the second value is the ``holdout`` part of the document. A row never ends the run. With ``holdout`` terms
    of speed and of power are fitted without the rows that share its values."""
    asked = [as_speed_row(row) for row in rows]
    judgements, document = speed.judge(asked, models_dir=models_dir, holdout=holdout, progress=progress)
    told = _asked(asked, models_dir)
    rates = [one.comparisons[0] if one.used else None for one in judgements]
    terms = _terms(told, rates, [one.cells for one in judgements], holdout)
    found = []
    for at, (row, judgement) in enumerate(zip(rows, judgements, strict=True)):
        judged = judgement
        if (rate := rates[at]) is not None and (own := terms[at]) is not None:
            judged = _with_power(row, told, at, judgement, rate, own)
        assumed = (*judged.assumed, *_assumed_length(row)) if judged.used else judged.assumed
        found.append(replace(judged, assumed=assumed))
    return found, document


def fit_energy_rows(
    rows: Sequence[Row],
    *,
    others: Sequence[Row] = (),
    caps: PowerRows | None = None,
    models_dir: str | Path | None = None,
) -> FittedPower:
    """Terms of power fitted to the rows of energy tables that can be used; the bounds of chips that nobody measured hold
    ``others`` too, ``caps`` are rows of power-cap tables. Raises `InputError` where no row can be used."""
    measured = _usable(rows, models_dir)
    if measured is None:
        raise InputError(
            "no row of the table states watts, a rate and what was run; see trilemma validate for the reasons"
        )
    return fit_power(measured, _usable(others, models_dir) if others else None, caps)


def _usable(rows: Sequence[Row], models_dir: str | Path | None) -> PowerRows | None:
    asked = [as_speed_row(row) for row in rows]
    judgements, _ = speed.judge(asked, models_dir=models_dir)
    told = _asked(asked, models_dir)
    rates = [one.comparisons[0] if one.used else None for one in judgements]
    return _measured(told, rates, range(len(rows)))


def as_speed_row(row: Row) -> Row:
    """``row`` as a row of serving speed: the load in flight on average, else at most, and the rate of its phase; prompts that the
    row does not state are of the length that is assumed of its task."""
    length = "" if row.text("isl") else _lengths().get(row.text("task"), "")
    cells = {
        "precision_weights": row.text("precision"),
        "concurrency_or_batch": row.text("avg_batch") or row.text("max_batch"),
        "metric": _PHASES.get(row.text("phase").lower(), RATE),
        "value": row.text(RATE),
        "isl": length,
    }
    return replace(row, cells={**row.cells, **{name: text for name, text in cells.items() if text}})


@cache
def _lengths() -> Mapping[str, str]:
    return {task: str(tokens) for task, tokens in read_data("validation/prompt_lengths.toml")["tasks"].items()}


def _assumed_length(row: Row) -> tuple[str, ...]:
    length = "" if row.text("isl") else _lengths().get(row.text("task"), "")
    return (f"prompts of {length} tokens: the row does not say",) if length else ()


def _asked(rows: Sequence[Row], models_dir: str | Path | None) -> _Asked:
    questions = read_questions(rows, None if models_dir is None else str(models_dir))
    columns = columns_of_rows(benches_of(questions), serving_terms.shipped(), len(rows))
    return _Asked(rows=tuple(rows), questions=questions, columns=columns)


def _number(row: Row, column: str, low: float, high: float) -> float | None:
    try:
        return row.number(column, low=low, high=high)
    except UnusableRow:
        return None


def _measured(told: _Asked, rates: Sequence[FigureComparison | None], chosen: Sequence[int]) -> PowerRows | None:
    """The rows ``chosen`` that state watts, at their own rate; None where there are none."""
    kept, shares, part = [], [], []
    for at in chosen:
        question, rate = told.questions[at], rates[at]
        watts = _number(told.rows[at], WATTS, 1e-3, 1e5)
        if isinstance(question, str) or rate is None or watts is None or question.accelerator.tdp_w is None:
            continue
        if np.isfinite(told.columns[at]).all():
            kept.append(at)
            shares.append(watts / question.accelerator.tdp_w.value)
            part.append(rate.measured / rate.predicted)
    if not kept:
        return None
    questions = [question for at in kept if isinstance(question := told.questions[at], SpeedQuestion)]
    return PowerRows(
        columns=at_rate(told.columns[kept], np.array(part)),
        shares=np.array(shares),
        chips=tuple(chips_of(one.accelerator) for one in questions),
        models=tuple(one.model.name for one in questions),
    )


def _terms(
    told: _Asked,
    rates: Sequence[FigureComparison | None],
    cells: Sequence[Mapping[str, str]],
    holdout: Sequence[str],
) -> list[PowerTerms | None]:
    """The terms of power of each row: those shipped, or fitted to the rows of the other groups."""
    found: list[PowerTerms | None] = []
    fitted: dict[tuple[str, ...], FittedPower | None] = {}
    groups = [tuple(one.get(column, "") for column in holdout) for one in cells]
    for at, question in enumerate(told.questions):
        if isinstance(question, str):
            found.append(None)
            continue
        if not holdout:
            found.append(power_terms(question.accelerator))
            continue
        group = groups[at]
        if group not in fitted:
            rest = _measured(told, rates, [i for i, other in enumerate(groups) if other != group])
            fitted[group] = None if rest is None else fit_power(rest)
        own = fitted[group]
        found.append(None if own is None else own.told(chips_of(question.accelerator)))
    return found


def _with_power(
    row: Row, told: _Asked, at: int, judgement: Judgement, rate: FigureComparison, terms: PowerTerms
) -> Judgement:
    question = told.questions[at]
    assert isinstance(question, SpeedQuestion)
    try:
        joules = row.number(JOULES, low=1e-9, high=1e9)
        watts = row.number(WATTS, low=1e-3, high=1e5)
    except UnusableRow as error:
        return replace(judgement, left_out=(*judgement.left_out, str(error)))
    limit = question.accelerator.tdp_w
    if limit is None:
        return replace(judgement, left_out=(*judgement.left_out, f"power of {question.accelerator.id} is not known"))
    columns = told.columns[at : at + 1]
    ours, given = (
        limit.value * float(predicted_shares(terms, at_rate(columns, np.array([share])))[0])
        for share in (1.0, rate.measured / rate.predicted)
    )
    gpus = int(question.layout.gpus) if question.pools is None else question.pools.gpus
    found = list(judgement.comparisons)
    if watts is not None:
        found.append(_figure(WATTS, ours, terms.half, watts, most=limit.value))
    if joules is not None:
        slow = 1.0 if rate.low is None else np.log(rate.predicted / max(rate.low, 1e-12))
        both = float(np.hypot(terms.half, slow))
        found.append(_figure(JOULES, ours * gpus / rate.predicted, both, joules))
        most = limit.value * gpus / rate.measured
        found.append(_figure(GIVEN, given * gpus / rate.measured, terms.half, joules, most=most))
    return replace(judgement, comparisons=tuple(found))


def _figure(metric: str, value: float, half: float, measured: float, *, most: float = float("inf")) -> FigureComparison:
    """``value`` within the factor e^half, at most ``most`` (what the limit of the boards comes to)."""
    high = max(min(value * float(np.exp(half)), most), value)
    return FigureComparison(
        metric=metric, predicted=value, low=value * float(np.exp(-half)), high=high, measured=measured
    )
