"""What is said of predictions and measurements: pure functions from lists of numbers to a handful of statistics."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from trilemma.quantities import Array

T = TypeVar("T")
#: Values of a macro column with fewer rows than this are pooled into one.
FEWEST_ROWS = 3
POOLED = "(pooled)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Errors of one metric over ``n`` rows, as fractions of the measured value.

    ``median_ape``, ``mape`` and ``p90_ape`` are median, mean and 90th percentile (linear interpolation) of
    ``|predicted − measured| / |measured|``; ``bias`` is the mean of the same with its sign, positive where we say too much.
    ``coverage90`` is the share of rows whose measurement lies inside the predicted 90 % interval and ``half_width_median``
    the median of half that interval over the predicted value; both None when no row has an interval.
    """

    n: int
    median_ape: float
    mape: float
    p90_ape: float
    bias: float
    coverage90: float | None = None
    half_width_median: float | None = None

    def to_json(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}


#: Bins of stated probability, by their lower ends.
RELIABILITY_BINS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sureness:
    """Verdicts stated with a probability of at least ``at_least`` and below the next bin: ``n`` of them, stated ``mean`` on
    average, of which ``held`` ended as said; ``held_from`` is the share that held of these and all surer ones (``n_from``)."""

    at_least: float
    n: int
    mean: float | None
    held: float | None
    n_from: int
    held_from: float | None

    def to_json(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def reliability(stated: Sequence[float], held: Sequence[bool]) -> tuple[Sureness, ...]:
    """Stated probability of verdicts against how often they held, by `RELIABILITY_BINS`; empty for no verdict."""
    if not stated:
        return ()
    said, truth = np.asarray(stated, dtype=float), np.asarray(held, dtype=bool)
    found = []
    for low, high in itertools.pairwise((*RELIABILITY_BINS, 1.1)):
        here, upward = (said >= low) & (said < high), said >= low
        found.append(
            Sureness(
                at_least=low,
                n=int(here.sum()),
                mean=float(said[here].mean()) if here.any() else None,
                held=float(truth[here].mean()) if here.any() else None,
                n_from=int(upward.sum()),
                held_from=float(truth[upward].mean()) if upward.any() else None,
            )
        )
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictScore:
    """How often "it starts" was right over ``n`` rows that say whether the engine started.

    ``false_fit`` is the share of engines that did not start among those told to start and ``false_no_fit`` the share of
    engines that started but were told not to: both over the *measured* class. ``balanced_accuracy`` is the mean of the two
    hit rates, so that always answering "starts" scores one half; None unless both outcomes occur.
    """

    n: int
    accuracy: float
    false_fit: float | None
    false_no_fit: float | None
    balanced_accuracy: float | None
    reliability: tuple[Sureness, ...] = ()

    def to_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in asdict(self).items() if value is not None and name != "reliability"}
        return plain | ({"reliability": [one.to_json() for one in self.reliability]} if self.reliability else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class PairOrder:
    """Share of ``n`` comparable pairs that the predictions put in the measured order."""

    n: int
    agreement: float


def errors(
    predicted: Sequence[float],
    measured: Sequence[float],
    *,
    low: Sequence[float | None] | None = None,
    high: Sequence[float | None] | None = None,
    scale: Sequence[float] | None = None,
) -> Errors | None:
    """Statistics of one metric; None for no rows. ``scale`` replaces the measured value in the denominator of the errors."""
    if not predicted:
        return None
    truth = np.asarray(measured, dtype=float)
    signed = (np.asarray(predicted, dtype=float) - truth) / np.abs(truth if scale is None else np.asarray(scale, float))
    ape = np.abs(signed)
    coverage, half_width = _interval_figures(predicted, measured, low, high, scale)
    return Errors(
        n=len(predicted),
        median_ape=float(np.median(ape)),
        mape=float(ape.mean()),
        p90_ape=float(np.percentile(ape, 90)),
        bias=float(signed.mean()),
        coverage90=coverage,
        half_width_median=half_width,
    )


def _interval_figures(
    predicted: Sequence[float],
    measured: Sequence[float],
    low: Sequence[float | None] | None,
    high: Sequence[float | None] | None,
    scale: Sequence[float] | None,
) -> tuple[float | None, float | None]:
    if low is None or high is None:
        return None, None
    inside: list[bool] = []
    half: list[float] = []
    for i, (bottom, top) in enumerate(zip(low, high, strict=True)):
        if bottom is None or top is None:
            continue
        inside.append(bottom <= measured[i] <= top)
        over = abs(predicted[i]) if scale is None else abs(scale[i])
        half.append((top - bottom) / 2 / over if over else float("inf"))
    return (float(np.mean(inside)), float(np.median(half))) if inside else (None, None)


def verdict_score(
    predicted: Sequence[bool], started: Sequence[bool], *, sure: Sequence[float | None] = ()
) -> VerdictScore | None:
    """Score of start-or-not verdicts, each said with the probability ``sure``; None for no rows."""
    if not predicted:
        return None
    said = np.asarray(predicted, dtype=bool)
    truth = np.asarray(started, dtype=bool)
    false_fit = float(said[~truth].mean()) if (~truth).any() else None
    false_no_fit = float((~said[truth]).mean()) if truth.any() else None
    balanced = None if false_fit is None or false_no_fit is None else 1 - (false_fit + false_no_fit) / 2
    return VerdictScore(
        n=len(said),
        accuracy=float((said == truth).mean()),
        false_fit=false_fit,
        false_no_fit=false_no_fit,
        balanced_accuracy=balanced,
        reliability=_reliability(said == truth, sure),
    )


def _reliability(right: Array, sure: Sequence[float | None]) -> tuple[Sureness, ...]:
    stated = [(one, bool(held)) for one, held in zip(sure, right, strict=False) if one is not None]
    return reliability([one for one, _ in stated], [held for _, held in stated])


def pair_order(
    groups: Sequence[Hashable], predicted: Sequence[float], measured: Sequence[float], *, least_ratio: float = 1.05
) -> PairOrder | None:
    """Agreement in order over pairs of one group whose measurements differ by at least ``least_ratio``; None for no pair.

    Predictions that tie count as half.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    points: list[float] = []
    for indices in members.values():
        for a, b in itertools.combinations(indices, 2):
            small, large = sorted((a, b), key=lambda i: measured[i])
            if measured[small] > 0 and measured[large] / measured[small] >= least_ratio:
                points.append(0.5 * (1 + np.sign(predicted[large] - predicted[small])))
    return PairOrder(n=len(points), agreement=float(np.mean(points))) if points else None


def pool_small(values: Mapping[str, Sequence[T]], *, fewest: int = FEWEST_ROWS) -> dict[str, list[T]]:
    """Groups with fewer than ``fewest`` members joined into one called "(pooled)"."""
    kept = {value: list(members) for value, members in values.items() if len(members) >= fewest}
    rest = [member for members in values.values() if len(members) < fewest for member in members]
    if rest:
        kept[POOLED] = kept.get(POOLED, []) + rest
    return kept


def macro_median(parts: Iterable[Errors]) -> Errors | None:
    """Median of each statistic over groups, each group counting once; ``n`` is the number of groups."""
    rows = list(parts)
    if not rows:
        return None

    def middle(name: str) -> Any:
        present = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        return float(np.median(present)) if present else None

    names = ("median_ape", "mape", "p90_ape", "bias", "coverage90", "half_width_median")
    return Errors(n=len(rows), **{name: middle(name) for name in names})


def quantile(values: Sequence[float], share: float) -> float:
    """The ``share`` quantile of ``values`` (linear interpolation)."""
    array: Array = np.asarray(values, dtype=float)
    return float(np.quantile(array, share))
