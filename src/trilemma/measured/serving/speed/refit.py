"""Serving terms fitted to a table: once to all of it, and again with groups of rows left out.

Every fitted number takes part: a group that is left out is judged by terms, and inside bounds, that never saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError, with_flags
from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.campaigns import with_trust
from trilemma.measured.serving.speed.distance import distances, runs_of
from trilemma.measured.serving.speed.elsewhere import Published, published, widths_of
from trilemma.measured.serving.speed.figures import SpeedFigures, predict
from trilemma.measured.serving.speed.fit import fit
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.serving.speed.spread import Residual, spreads_of
from trilemma.measured.tables import Row, UnusableRow
from trilemma.models.architecture import ExpertFfn, Model
from trilemma.quantities import Array
from trilemma.timing.distance import DISTANCES, Seen
from trilemma.timing.serving_terms import ServingTerms, priors

#: Parts of the loads of a run that are left out in turn, and parts of all blocks.
_LOAD_FOLDS = 5
_BLOCK_FOLDS = 6


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
    """Predictions of every row by terms fitted without the rows of its group; nan where it has none.

    Each fit sets out from the spec sheet and runs until it gains nothing: terms that had seen the group would carry what they
    saw into a fit that stops early.
    """
    found = np.full(len(groups), np.nan)
    named = np.empty(len(groups), dtype=object)
    named[:] = list(groups)
    used = np.unique(np.concatenate([bench.at for bench in benches]))
    done = 0
    for group in dict.fromkeys(groups[at] for at in used if groups[at] is not None):
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
    far: Sequence[str],
    blocks: Sequence[Hashable],
) -> list[Residual]:
    """Measured over predicted of every trusted row that was predicted: ``far`` is its class, ``blocks`` what it is part of."""
    found = []
    for bench in benches:
        first = questions[int(bench.at[0])]
        assert isinstance(first, SpeedQuestion)
        family = family_of(first.model)
        for at, figure, measured, trust in zip(bench.at, bench.quantity, bench.measured, bench.trust, strict=True):
            if trust >= 1.0 and np.isfinite(predicted[at]):
                found.append(
                    Residual(
                        figure=str(figure), family=family, distance=far[at], block=blocks[at],
                        ratio=float(measured / predicted[at]),
                    )
                )  # fmt: skip
    return found


def fit_rows(
    rows: Sequence[Row],
    *,
    models_dir: str | None,
    source: str,
    start: ServingTerms | None = None,
    others: Sequence[Row] = (),
) -> ServingTerms:
    """`fit_table` of the rows of a measured table; rows that cannot be used take no part. Raises `InputError` for none.

    ``others`` are rows of other publishers: nothing is fitted to them, but bounds are to hold them too.
    """
    questions = read_questions(rows, models_dir)
    benches = benches_of(questions)
    if not benches:
        raise InputError("no row of the table can be used to fit serving terms; see trilemma validate for the reasons")
    terms = fit_table(benches, questions, source=source, start=start)
    used = {at for bench in benches for at in bench.at.tolist()}
    terms = replace(terms, origins=frozenset(rows[at].text("origin") for at in used))
    return replace(terms, apart=widths_of(elsewhere_rows(others, terms, models_dir=models_dir)))


def elsewhere_rows(rows: Sequence[Row], terms: ServingTerms, *, models_dir: str | None) -> list[Published]:
    """The figures of ``rows`` by other publishers than those of the runs that were fitted."""
    questions = read_questions(rows, models_dir)
    benches = benches_of(questions)
    predicted = predictions(benches, terms, len(rows))
    return published(rows, questions, benches, predicted, distances(benches, questions, terms.seen), terms)


def read_questions(rows: Sequence[Row], models_dir: str | None) -> list[SpeedQuestion | str]:
    """The question of each row, or why it has none."""
    questions: list[SpeedQuestion | str] = []
    for row in rows:
        try:
            questions.append(read_speed_question(row, models_dir))
        except (UnusableRow, InputError) as error:
            questions.append(with_flags(error))
    return with_trust(rows, questions)


def fit_table(
    benches: Sequence[SpeedFigures],
    questions: Sequence[SpeedQuestion | str],
    *,
    source: str,
    start: ServingTerms | None = None,
) -> ServingTerms:
    """Terms fitted to all rows, with bounds by distance from rows that were left out (`left_out`). Rows of little trust take no
    part in bounds."""
    terms = fit(benches, priors(), start=start)
    residuals = left_out(benches, questions)
    told: dict[str, set[str]] = {}
    for bench in benches:
        told.setdefault(bench.engine, set()).update(map(str, bench.quantity))
    return replace(
        terms,
        spreads=spreads_of(residuals),
        seen=Seen.of(list(runs_of(benches, questions).values())),
        figures={engine: frozenset(names) for engine, names in told.items()},
        source=source,
    )


def left_out(benches: Sequence[SpeedFigures], questions: Sequence[SpeedQuestion | str]) -> list[Residual]:
    """Rows as fits from the spec sheet see them that saw less and less of their surroundings: the other loads of their run, other
    models on their deployment, and so on outwards to other engines alone. A row stands once in each class in which it can.

    Blocks are left out a sixth at a time, neighbours in different sixths: a fit for each would say much the same at five times
    the cost.
    """
    runs = runs_of(benches, questions)
    loads = {at: load for bench in benches for at, load in _loads(bench, questions)}
    rungs: tuple[Callable[[int], Hashable], ...] = (
        lambda at: loads[at] % _LOAD_FOLDS,
        lambda at: runs[at],
        lambda at: runs[at][:3],
        lambda at: runs[at][:2],
        lambda at: runs[at][1],
        lambda at: runs[at][0],
    )
    found: list[Residual] = []
    seen_as: dict[int, set[str]] = {at: set() for at in runs}
    for rung, key in enumerate(rungs):
        groups = _in_folds([key(at) if at in runs else None for at in range(len(questions))])
        far = distances(benches, questions, Seen(), groups)
        new = {at for at in runs if far[at] not in seen_as[at] and (rung > 0) == (far[at] != next(iter(DISTANCES)))}
        worth = {groups[at] for at in new}
        predicted = without(benches, [group if group in worth else None for group in groups])
        predicted = np.array([value if at in new else np.nan for at, value in enumerate(predicted)])
        blocks = [runs.get(at, ("",) * 4) for at in range(len(questions))]
        found += residuals_of(benches, questions, predicted, far, blocks)
        for at in new:
            seen_as[at].add(far[at])
    return found


def _in_folds(groups: Sequence[Hashable]) -> list[int | None]:
    """The fold of each group, by turns in their order."""
    order = sorted({group for group in groups if group is not None})  # type: ignore[type-var]
    folds = {group: at % _BLOCK_FOLDS for at, group in enumerate(order)}
    return [None if group is None else folds[group] for group in groups]


def _loads(bench: SpeedFigures, questions: Sequence[SpeedQuestion | str]) -> Iterator[tuple[int, int]]:
    """(row, number of its load among those of the bench); the figures of one load have one number."""
    numbers: dict[Hashable, int] = {}
    for at in bench.at.tolist():
        question = questions[at]
        assert isinstance(question, SpeedQuestion)
        load = (question.layout, question.isl, question.osl, *question.load)
        yield at, numbers.setdefault(load, len(numbers))
