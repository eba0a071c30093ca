"""Serving terms fitted to a table: once to all of it, and again with groups of rows left out.

Every fitted number takes part: a group that is left out is judged by terms, and inside bounds, that never saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError, with_flags
from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.figures import SpeedFigures, predict
from trilemma.measured.serving.speed.fit import fit
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.serving.speed.spread import Residual, spreads_of
from trilemma.measured.tables import Row, UnusableRow
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.quantities import Array
from trilemma.timing.serving_terms import ServingTerms, Spread, priors

_MODEL_FOLDS = 6


def family_of(model: Model) -> str:
    """dense or mixture."""
    return "mixture" if any(isinstance(layer.ffn, ExpertFfn) for layer in model.layers) else "dense"


def predictions(benches: Sequence[SpeedFigures], terms: ServingTerms, rows: int) -> Array:
    """(rows,) predictions in seconds or tokens per second; nan where no bench holds the row."""
    found = np.full(rows, np.nan)
    for bench in benches:
        found[bench.at] = predict(bench, terms.factors(bench.engine, bench.machine.accelerator, bench.precision))
    return found


def without(
    benches: Sequence[SpeedFigures],
    groups: Sequence[Hashable],
    *,
    progress: Callable[[int], None] | None = None,
) -> Array:
    """Predictions of every row by terms fitted without the rows of its group.

    Each fit sets out from the spec sheet and runs until it gains nothing: terms that had seen the group would carry what they
    saw into a fit that stops early.
    """
    found = np.full(len(groups), np.nan)
    named = np.empty(len(groups), dtype=object)
    named[:] = list(groups)
    used = np.unique(np.concatenate([bench.at for bench in benches]))
    done = 0
    for group in dict.fromkeys(groups[at] for at in used):
        own = [bench.take(mask) for bench in benches if np.any(mask := _is(named[bench.at], group))]
        rest = [bench.take(mask) for bench in benches if np.any(mask := ~_is(named[bench.at], group))]
        if rest:
            terms = fit(rest, priors())
            for bench in own:
                factors = terms.factors(bench.engine, bench.machine.accelerator, bench.precision)
                found[bench.at] = predict(bench, factors)
        done += sum(len(bench.at) for bench in own)
        if progress is not None:
            progress(done)
    return found


def _is(names: Sequence[Hashable], group: Hashable) -> NDArray[np.bool_]:
    return np.array([name == group for name in names], dtype=np.bool_)


def residuals_of(
    benches: Sequence[SpeedFigures],
    questions: Sequence[SpeedQuestion | str],
    predicted: Array,
    *,
    leave_out: Array | None = None,
) -> list[Residual]:
    """Measured over predicted of every row that was predicted and is not in ``leave_out`` (a mask)."""
    found = []
    for bench in benches:
        first = questions[int(bench.at[0])]
        assert isinstance(first, SpeedQuestion)
        family = family_of(first.model)
        for at, figure, measured, trust in zip(bench.at, bench.quantity, bench.measured, bench.trust, strict=True):
            if trust >= 1.0 and np.isfinite(predicted[at]) and not (leave_out is not None and leave_out[at]):
                ratio = float(measured / predicted[at])
                found.append(
                    Residual(
                        figure=str(figure), family=family, engine=bench.engine, precision=bench.precision, ratio=ratio
                    )
                )
    return found


def fit_rows(
    rows: Sequence[Row], *, models_dir: str | None, source: str, start: ServingTerms | None = None
) -> ServingTerms:
    """`fit_table` of the rows of a measured table; rows that cannot be used take no part. Raises `InputError` for none."""
    questions: list[SpeedQuestion | str] = []
    for row in rows:
        try:
            questions.append(read_speed_question(row, models_dir))
        except (UnusableRow, InputError) as error:
            questions.append(with_flags(error))
    benches = benches_of(questions)
    if not benches:
        raise InputError("no row of the table can be used to fit serving terms; see trilemma validate for the reasons")
    return fit_table(benches, questions, source=source, start=start)


def fit_table(
    benches: Sequence[SpeedFigures],
    questions: Sequence[SpeedQuestion | str],
    *,
    source: str,
    start: ServingTerms | None = None,
) -> ServingTerms:
    """Terms fitted to all rows, with bounds.

    Of deployments that were fitted: from the rows themselves and the same rows with their model left out, half and half. Of
    others: from rows with their card and engine left out and rows with their model left out. Rows of little trust take no
    part in bounds.
    """
    terms = fit(benches, priors(), start=start)
    rows = len(questions)
    fitted = residuals_of(benches, questions, predictions(benches, terms, rows))
    other_models = residuals_of(benches, questions, without(benches, _groups(questions, "model")))
    elsewhere = residuals_of(benches, questions, without(benches, _groups(questions, "deployment")))
    spreads: tuple[Spread, ...] = (
        *spreads_of([*fitted, *other_models], measured=True),
        *spreads_of([*elsewhere, *other_models], measured=False),
    )
    return replace(terms, spreads=spreads, source=source)


def _groups(questions: Sequence[SpeedQuestion | str], by: str) -> list[Hashable]:
    """Rows that are left out together: of one card and engine, or of one of a few folds of models."""
    models = sorted({one.model.name for one in questions if isinstance(one, SpeedQuestion)})
    fold = {name: at % _MODEL_FOLDS for at, name in enumerate(models)}
    return [
        None if isinstance(one, str) else fold[one.model.name] if by == "model" else (one.accelerator.id, one.engine)
        for one in questions
    ]
