"""Energy tables: the rate of a run, its joules a token and watts a card, as measured against what we say.

What an estimate states of power is the limit of the cards, and joules at that limit: an upper bound, so its range reaches down to
nothing. Rates are judged as rows of serving speed are, by the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trilemma.measured.judgement import FigureComparison, Judgement
from trilemma.measured.serving.speed import judge as speed
from trilemma.measured.serving.speed.question import read_speed_question
from trilemma.measured.tables import Row, UnusableRow

RATE, JOULES, WATTS = "output_tok_s_total", "j_per_output_token", "power_w_per_gpu"
#: A phase run alone and the metric of its rate, which the table prints in the column of all rates.
_PHASES = {"prefill": "prefill_tok_s", "decode": "decode_tok_s"}
METRICS = (*speed.METRICS, JOULES, WATTS)
GROUPS, CLASSES = speed.GROUPS, speed.CLASSES


def judge(
    rows: Sequence[Row],
    *,
    models_dir: str | Path | None = None,
    holdout: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Judgement], dict[str, Any]]:
    """Judge every row; the second value is the ``holdout`` part of the document. A row never ends the run."""
    asked = [as_speed_row(row) for row in rows]
    judgements, document = speed.judge(asked, models_dir=models_dir, holdout=holdout, progress=progress)
    place = None if models_dir is None else str(models_dir)
    found = []
    for row, one, judgement in zip(rows, asked, judgements, strict=True):
        found.append(replace(_with_power(row, one, judgement, place), cells=judgement.cells))
    return found, document


def as_speed_row(row: Row) -> Row:
    """``row`` as a row of serving speed: the load in flight on average, else at most, and the rate of its phase."""
    cells = {
        "precision_weights": row.text("precision"),
        "concurrency_or_batch": row.text("avg_batch") or row.text("max_batch"),
        "metric": _PHASES.get(row.text("phase").lower(), RATE),
        "value": row.text(RATE),
    }
    return replace(row, cells={**row.cells, **{name: text for name, text in cells.items() if text}})


def _with_power(row: Row, asked: Row, judgement: Judgement, models_dir: str | None) -> Judgement:
    if not judgement.used:
        return judgement
    rate = judgement.comparisons[0]
    try:
        question = read_speed_question(asked, models_dir)
        joules = row.number(JOULES, low=1e-9, high=1e9)
        watts = row.number(WATTS, low=1e-3, high=1e5)
    except UnusableRow as error:
        return replace(judgement, left_out=(*judgement.left_out, str(error)))
    limit = question.accelerator.tdp_w
    if limit is None:
        return replace(judgement, left_out=(*judgement.left_out, f"power of {question.accelerator.id} is not known"))
    found = list(judgement.comparisons)
    if watts is not None:
        found.append(FigureComparison(metric=WATTS, predicted=limit.value, low=0.0, high=limit.value, measured=watts))
    gpus = int(question.layout.gpus) if question.pools is None else question.pools.gpus
    if joules is not None:
        slowest = rate.low if rate.low is not None else rate.predicted
        found.append(
            FigureComparison(
                metric=JOULES,
                predicted=limit.value * gpus / rate.predicted,
                low=0.0,
                high=limit.value * gpus / slowest,
                measured=joules,
            )
        )
    return replace(judgement, comparisons=tuple(found))
