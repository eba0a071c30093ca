"""Judgements of rows gathered into the document ``trilemma/validation@1``: pooled, by class, and macro over a column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict, cast

from trilemma.columns import column
from trilemma.measured.judgement import FigureComparison, Judgement
from trilemma.measured.metrics import (
    Errors,
    PairOrder,
    VerdictScore,
    errors,
    macro_median,
    pair_order,
    pool_small,
    verdict_score,
)


class Holdout(TypedDict):
    """What was refitted to judge each row without those that share its values in ``columns``."""

    columns: list[str]
    groups: int
    terms: list[str]
    uninformed: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class SkippedRow:
    """A row that gave neither a figure nor a verdict, and the reason."""

    id: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RowNotes:
    """What was assumed of a row, or left out of its judgement."""

    id: str
    what: tuple[str, ...] = field(metadata=column(keep="empty"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Macro:
    """One metric over the values of a column: median of each statistic over ``groups`` values, from ``rows`` rows."""

    errors: Errors
    groups: int
    rows: int

    def to_json(self) -> dict[str, float]:
        return self.errors.to_json() | {"n": self.rows, "groups": self.groups}


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Errors of a whole table. ``metrics`` are pooled over rows; ``by`` maps "class=value" to the same for a part."""

    #: Its document, in order; metrics are told by their statistics (n, median_ape, mape, p90_ape, bias, …).
    COLUMNS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "kind": {}, "rows": {}, "used": {}, "skipped_rows": column("skipped", keep="empty"),
        "figures": column("metrics", exact=True, keep="empty"), "figures_by_class": column("by", exact=True, keep="empty"),
        "figures_macro": column("macro", exact=True, keep="empty"), "configs_used": {}, "assumed": column(keep="empty"),
        "left_out": column(keep="empty"), "pair_order": column(exact=True), "holdout": column(exact=True),
    }  # fmt: skip

    kind: str
    rows: int
    judgements: tuple[Judgement, ...]
    metrics: Mapping[str, Errors]
    verdict: VerdictScore | None = None
    by: Mapping[str, Mapping[str, Errors | VerdictScore]] = field(default_factory=dict)
    macro: Mapping[str, Mapping[str, Macro | VerdictScore]] = field(default_factory=dict)
    pair_order: PairOrder | None = None
    broken: tuple[tuple[str, str], ...] = ()
    holdout: Holdout | None = None

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(row id, reason) of every row that gave neither a figure nor a verdict."""
        return [*self.broken, *((j.row_id, j.skipped) for j in self.judgements if not j.used)]

    @property
    def used(self) -> int:
        return sum(judgement.used for judgement in self.judgements)

    @property
    def figures(self) -> dict[str, Any]:
        """Pooled errors of each metric as plain data, the score of the verdicts as "verdict"; what does not apply is absent."""
        found: dict[str, Any] = {name: stats.to_json() for name, stats in self.metrics.items()}
        return found if self.verdict is None else {**found, "verdict": self.verdict.to_json()}

    @property
    def figures_by_class(self) -> dict[str, Any]:
        return {name: _plain(part) for name, part in self.by.items()}

    @property
    def figures_macro(self) -> dict[str, Any]:
        return {column: _plain(part) for column, part in self.macro.items()}

    @property
    def skipped_rows(self) -> tuple[SkippedRow, ...]:
        return tuple(SkippedRow(id=row_id, why=why) for row_id, why in self.skipped)

    @property
    def configs_used(self) -> int:
        return len({j.config for j in self.judgements if j.used})

    @property
    def assumed(self) -> tuple[RowNotes, ...]:
        return tuple(RowNotes(id=j.row_id, what=tuple(j.assumed)) for j in self.judgements if j.used and j.assumed)

    @property
    def left_out(self) -> tuple[RowNotes, ...]:
        return tuple(RowNotes(id=j.row_id, what=tuple(j.left_out)) for j in self.judgements if j.left_out)


def summarise(
    kind: str,
    judgements: Sequence[Judgement],
    *,
    macro_columns: Sequence[str] = (),
    broken: Sequence[tuple[str, str]] = (),
    holdout: Mapping[str, Any] | None = None,
) -> Validation:
    """Gather the judgements of one table."""
    return Validation(
        kind=kind,
        rows=len(judgements) + len(broken),
        judgements=tuple(judgements),
        metrics=metrics_of(judgements),
        verdict=_verdict_of(judgements),
        by=_by_class(judgements),
        macro={column: _macro(judgements, column) for column in macro_columns},
        pair_order=_pair_order(judgements),
        broken=tuple(broken),
        holdout=cast(Holdout | None, holdout or None),
    )


def metrics_of(judgements: Iterable[Judgement]) -> dict[str, Errors]:
    """Pooled statistics of every metric that some row has, in order of first use."""
    found: dict[str, list[FigureComparison]] = {}
    for judgement in judgements:
        for comparison in judgement.comparisons:
            found.setdefault(comparison.metric, []).append(comparison)
    return {name: stats for name, rows in found.items() if (stats := _errors(rows)) is not None}


def _errors(rows: Sequence[FigureComparison]) -> Errors | None:
    return errors(
        [row.predicted for row in rows],
        [row.measured for row in rows],
        low=[row.low for row in rows],
        high=[row.high for row in rows],
        scale=[abs(row.measured) if row.scale is None else row.scale for row in rows]
        if any(row.scale is not None for row in rows)
        else None,
    )


def _verdict_of(judgements: Iterable[Judgement]) -> VerdictScore | None:
    starts = [judgement.start for judgement in judgements if judgement.start is not None]
    return verdict_score(
        [start.predicted for start in starts],
        [start.started for start in starts],
        sure=[start.sure for start in starts],
    )


def _by_class(judgements: Sequence[Judgement]) -> dict[str, dict[str, Errors | VerdictScore]]:
    parts: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        if judgement.used:
            origin = judgement.cells.get("origin")
            classes = {**judgement.classes, "origin": origin} if origin else judgement.classes
            for name, value in classes.items():
                parts.setdefault(f"{name}={value}", []).append(judgement)
    return {name: _all_of(parts[name]) for name in sorted(parts)}


def _all_of(judgements: Sequence[Judgement]) -> dict[str, Errors | VerdictScore]:
    stats: dict[str, Errors | VerdictScore] = dict(metrics_of(judgements))
    verdict = _verdict_of(judgements)
    return stats if verdict is None else {**stats, "verdict": verdict}


def _macro(judgements: Sequence[Judgement], column: str) -> dict[str, Macro | VerdictScore]:
    """Per metric: values of ``column`` with under three rows of that metric are pooled, then each value counts once."""
    found: dict[str, dict[str, list[FigureComparison]]] = {}
    for judgement in judgements:
        value = judgement.cells.get(column, "")
        for comparison in judgement.comparisons:
            found.setdefault(comparison.metric, {}).setdefault(value, []).append(comparison)
    gathered: dict[str, Macro | VerdictScore] = {}
    for metric, values in found.items():
        parts = [stats for rows in pool_small(values).values() if (stats := _errors(rows)) is not None]
        middle = macro_median(parts)
        if middle is not None:
            gathered[metric] = Macro(errors=middle, groups=len(parts), rows=sum(map(len, values.values())))
    return gathered


def _pair_order(judgements: Sequence[Judgement]) -> PairOrder | None:
    groups, predicted, measured = [], [], []
    for judgement in judgements:
        for comparison in judgement.comparisons:
            if judgement.order_group and comparison.metric == judgement.order_metric:
                groups.append(judgement.order_group)
                predicted.append(comparison.predicted)
                measured.append(comparison.measured)
    return pair_order(groups, predicted, measured)


def _plain(part: Mapping[str, Errors | VerdictScore | Macro]) -> dict[str, Any]:
    return {metric: stats.to_json() for metric, stats in part.items()}
