"""Serving-speed tables: latency and throughput as measured against what we say, beside a look-up in the same table."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.measured.judgement import FigureComparison, Judgement
from trilemma.measured.serving.speed.baseline import interpolated
from trilemma.measured.serving.speed.benches import benches_of, in_own_unit
from trilemma.measured.serving.speed.distance import distances
from trilemma.measured.serving.speed.figures import TIMES, SpeedFigures
from trilemma.measured.serving.speed.pool_rows import pool_predictions
from trilemma.measured.serving.speed.question import METRICS as _OWN
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.measured.serving.speed.refit import family_of, predictions, read_questions, residuals_of, without
from trilemma.measured.serving.speed.spread import spreads_of
from trilemma.measured.tables import Row
from trilemma.quantities import Array
from trilemma.timing import serving_terms
from trilemma.timing.eras import Era, with_age
from trilemma.timing.serving_terms import ServingTerms

#: Figures judged, and for each those of rows where a look-up has neighbours: the look-up's own errors and ours.
METRICS = (
    *_OWN,
    *(f"{metric}_interpolated" for metric in _OWN),
    *(f"{metric}_where_interpolated" for metric in _OWN),
)
#: Names that group rows beside the table's own columns, and classes that errors are gathered by.
GROUPS = ("precision",)
CLASSES = ("family", "pools", "engine", "gpu", "precision", "tier", "model", "distance", "era")
_RELEASE = re.compile(r"(?<![0-9.])v?([0-9]{1,4}\.[0-9]{1,4})|\bb([0-9])[0-9]{3}\b")


def judge(
    rows: Sequence[Row],
    *,
    models_dir: str | Path | None = None,
    holdout: Sequence[str] = (),
    terms: ServingTerms | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Judgement], dict[str, Any]]:
    """Judge every row; the second value is the ``holdout`` part of the document. A row never ends the run.

    Rows are judged by ``terms``, those shipped where none are given; with ``holdout`` by terms refitted without the rows that
    share its values in these columns.
    """
    place = None if models_dir is None else str(models_dir)
    questions = read_questions(rows, place)
    benches = benches_of(questions)
    terms = terms or serving_terms.shipped()
    if holdout and benches:
        groups = [_group(row, question, holdout) for row, question in zip(rows, questions, strict=True)]
        predicted = without(benches, groups, progress=progress)
        far = distances(benches, questions, terms.seen, groups)
        bounds = _bounds_without(benches, questions, predicted, far, groups)
        document = {"columns": list(holdout), "groups": len({g for g in groups if g is not None})}
        document |= {"terms": list(serving_terms.priors().terms), "uninformed": {}}
    else:
        groups = None
        predicted = predictions(benches, terms, len(rows))
        far = distances(benches, questions, terms.seen)
        bounds = _bounds(benches, questions, terms, far, [row.text("origin") in terms.origins for row in rows])
        document = {}
    apart, apart_bounds = pool_predictions(questions, terms)
    predicted = np.where(np.isfinite(apart), apart, predicted)
    bounds = np.where(np.isfinite(apart)[:, None], apart_bounds, bounds)
    looked_up = interpolated(questions, groups)
    judgements = [
        _judged(row, question, predicted[at], bounds[at], looked_up[at], far[at])
        for at, (row, question) in enumerate(zip(rows, questions, strict=True))
    ]
    return judgements, document


def _group(row: Row, question: SpeedQuestion | str, columns: Sequence[str]) -> tuple[str, ...] | None:
    if isinstance(question, str):
        return None
    return tuple(_resolved(row, question, column) for column in columns)


def _resolved(row: Row, question: SpeedQuestion, column: str) -> str:
    """A cell as it compares: names after resolution, so that two spellings of one thing are one value."""
    match column:
        case "gpu":
            return question.accelerator.id
        case "model":
            return question.model.name
        case "engine":
            return question.engine
        case "precision":
            return question.precision
        case _:
            return row.text(column)


def _bounds(
    benches: Sequence[SpeedFigures],
    questions: Sequence[SpeedQuestion | str],
    terms: ServingTerms,
    far: Sequence[str],
    same_origin: Sequence[bool],
) -> Array:
    """(rows, 2) factors of the predictions within which nine of ten figures lie; nan where no class has any. Those of an origin
    that was fitted are those of its class; to others' belong what sets publishers apart and the age of releases."""
    found = np.full((len(questions), 2), np.nan)
    for bench in benches:
        first = questions[int(bench.at[0])]
        assert isinstance(first, SpeedQuestion)
        for at, figure in zip(bench.at, bench.quantity, strict=True):
            one = questions[at]
            assert isinstance(one, SpeedQuestion)
            name = terms.told_as(bench.engine, str(figure))
            in_flight = one.concurrency if one.rate is None else np.inf
            half = terms.half(
                name,
                family=family_of(first.model),
                distance=far[at],
                in_flight=in_flight,
                fitted_origin=same_origin[at],
            )
            if half is not None:
                low, high = with_age(np.exp(-half), np.exp(half), Era() if same_origin[at] else one.age)
                found[at] = (low, high) if figure in TIMES else (1 / high, 1 / low)
    return found


def _bounds_without(
    benches: Sequence[SpeedFigures],
    questions: Sequence[SpeedQuestion | str],
    predicted: Array,
    far: Sequence[str],
    groups: Sequence[Any],
) -> Array:
    """`_bounds` of rows that were left out, from what the other groups were off by when each was left out in turn."""
    found = np.full((len(questions), 2), np.nan)
    everything = residuals_of(benches, questions, predicted, far, groups)
    for group in dict.fromkeys(group for group in groups if group is not None):
        own = np.array([one == group for one in groups], dtype=bool)
        terms = ServingTerms(offsets=(), spreads=spreads_of([one for one in everything if one.block != group]))
        mine = [bench.take(mask) for bench in benches if np.any(mask := own[bench.at])]
        found = np.where(own[:, None], _bounds(mine, questions, terms, far, [True] * len(questions)), found)
    return found


def _judged(
    row: Row, question: SpeedQuestion | str, predicted: float, bounds: Array, looked_up: float, far: str
) -> Judgement:
    if isinstance(question, str):
        return Judgement(row_id=row.id, cells=row.cells, skipped=question)
    if not np.isfinite(predicted):
        return Judgement(row_id=row.id, cells=row.cells, skipped="no other row is left to fit")
    ours = in_own_unit(question, float(predicted))
    low, high = (None, None) if np.isnan(bounds[0]) else (ours * float(bounds[0]), ours * float(bounds[1]))
    comparisons = [
        FigureComparison(metric=question.metric, predicted=ours, measured=question.measured, low=low, high=high)
    ]
    if np.isfinite(looked_up):
        names = ((f"{question.metric}_interpolated", float(looked_up)), (f"{question.metric}_where_interpolated", ours))
        comparisons += [
            FigureComparison(metric=name, predicted=value, measured=question.measured) for name, value in names
        ]
    layout = question.layout
    lengths = f"{row.text('isl')}/{row.text('osl')}"
    return Judgement(
        row_id=row.id,
        cells={column: _resolved(row, question, column) for column in row.cells},
        classes={**_classes(row, question), "distance": far, "era": era_of(row, question)},
        comparisons=tuple(comparisons),
        config=repr(
            (
                question.model.name,
                question.accelerator.id,
                question.engine,
                question.pools or layout,
                lengths,
                *question.load,
            )
        ),
        order_group=f"{question.model.name} {question.accelerator.id} {lengths}",
        order_metric=question.metric if question.metric == "tpot_ms" else "output_tok_s_per_gpu",
        assumed=question.assumed,
    )


def era_of(row: Row, question: SpeedQuestion) -> str:
    """The minor release of the engine (a thousand builds of llama.cpp) that the row names."""
    release = _RELEASE.search(row.text("version")[:200])
    if release is None:
        return f"{question.engine} not stated"
    return f"{question.engine} {release[1] or f'b{release[2]}xxx'}"


def _classes(row: Row, question: SpeedQuestion) -> dict[str, str]:
    family = "moe" if family_of(question.model) == "mixture" else "dense"
    tier = row.text("tier") or "not stated"
    return {
        "family": family,
        "pools": "apart" if question.pools is not None else "one",
        "engine": question.engine,
        "gpu": question.accelerator.id,
        "precision": question.precision,
        "tier": tier,
        "tier_family": f"{tier} {family}",
        "model": question.model.name,
    }
