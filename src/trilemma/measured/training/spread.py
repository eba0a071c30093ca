"""Ranges of a training step from rows that fits never saw, by the class that the runs left name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from trilemma.measured.training.fit import Sample
from trilemma.quantities import Array
from trilemma.timing.training_intervals import SPARSE
from trilemma.timing.training_operators import training_work

#: Percentiles that bound ranges: of a source that neither the fit nor its range saw nine rows of ten lie between these two.
_TAIL = 0.04
_FEWEST_OF_CLASS = 8
KINDS = ("dense", "mixture")
#: Classes from near to far: what many, few and no runs of other sources tell about.
CLASSES = ("measured", "sparse", "unmeasured")
#: No range is narrower than this (factors of a step).
_LEAST = (0.97, 1.03)


def mixtures_of(samples: Sequence[Sample]) -> Any:
    return np.array([training_work(sample.model, mtp=False).is_mixture for sample in samples], dtype=bool)


def classes_of(samples: Sequence[Sample], mixture: Any, groups: Sequence[Hashable]) -> Any:
    """The class of every sample by the runs of other groups (its source, say) of its kind of model."""
    numbers = _numbered(groups)
    return np.array([_class_without(samples, mixture, numbers, at) for at in range(len(samples))])


def _numbered(groups: Sequence[Hashable]) -> Any:
    known = {group: at for at, group in enumerate(dict.fromkeys(groups))}
    return np.array([known[group] for group in groups])


def _class_without(samples: Sequence[Sample], mixture: Any, groups: Any, at: int) -> str:
    others = [samples[int(i)] for i in np.flatnonzero((mixture == mixture[at]) & (groups != groups[at]))]
    one = samples[at]
    runs = sum(other.weight for other in others if other.framework.name == one.framework.name)
    card = any(other.cluster.accelerator.id == one.cluster.accelerator.id for other in others)
    return "unmeasured" if not runs or not card else "measured" if runs >= SPARSE else "sparse"


def bounds_of(
    ratio: Mapping[str, Array], weight: Array, groups: Sequence[Hashable], mixture: Any, classes: Any
) -> dict[str, tuple[float, float, int]]:
    """(low, high, rows) of every kind and class: percentiles of measured over predicted seconds (``ratio``: "class" of rows whose
    group a fit never saw, "kind" of those that stand for classes that few rows are in), a group weighing as the root of its rows.
    No class is narrower than one that knows more."""
    numbers = _numbered(groups)
    found: dict[str, tuple[float, float, int]] = {}
    for mixed, kind in enumerate(KINDS):
        low, high = _LEAST
        for name in CLASSES:
            chosen, told = (mixture == bool(mixed)) & (classes == name), ratio["class"]
            if np.count_nonzero(chosen) < _FEWEST_OF_CLASS:
                chosen, told = mixture == bool(mixed), ratio["kind"]
            if np.any(chosen):
                sums = np.bincount(numbers[chosen], weights=weight[chosen], minlength=numbers.max() + 1)
                heavy = weight / np.sqrt(np.maximum(sums[numbers], 1e-12))
                low = min(low, _weighted_quantile(told[chosen], heavy[chosen], _TAIL))
                high = max(high, _weighted_quantile(told[chosen], heavy[chosen], 1 - _TAIL))
            found[f"{kind}_{name}"] = low, high, int(chosen.sum())
    return found


def bounds_without(
    ratio: Array, weight: Array, samples: Sequence[Sample], groups: Sequence[Hashable]
) -> list[tuple[float, float]]:
    """(low, high) factors of each sample's step by what the other groups were off by, each left out in turn: neither the fit nor
    the range saw its group."""
    mixture = mixtures_of(samples)
    classes, numbers = classes_of(samples, mixture, groups), _numbered(groups)
    found: list[tuple[float, float]] = [(1.0, 1.0)] * len(samples)
    for group in range(int(numbers.max()) + 1):
        rest = numbers != group
        kept = [groups[int(at)] for at in np.flatnonzero(rest)]
        if not kept:
            continue
        told = {"class": ratio[rest], "kind": ratio[rest]}
        bounds = bounds_of(told, weight[rest], kept, mixture[rest], classes[rest])
        for at in np.flatnonzero(~rest):
            low, high, _ = bounds[f"{KINDS[bool(mixture[at])]}_{classes[at]}"]
            found[int(at)] = low, high
    return found


def _weighted_quantile(values: Array, weights: Array, share: float) -> float:
    order = np.argsort(values)
    reached = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return float(np.interp(share, reached, values[order]))
