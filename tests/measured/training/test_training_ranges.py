"""Ranges of a training step: percentiles of rows whose group a fit never saw, by the class that the groups left name."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trilemma.measured.training import spread
from trilemma.measured.training.spread import bounds_of, bounds_without, classes_of
from trilemma.timing.training_intervals import SPARSE


@dataclass(frozen=True)
class Told:
    """What a range sees of a sample."""

    framework: Any
    cluster: Any
    weight: float = 1.0
    model: Any = field(default=None)


def sample(framework: str, card: str, weight: float = 1.0) -> Any:
    cluster = SimpleNamespace(accelerator=SimpleNamespace(id=card))
    return Told(framework=SimpleNamespace(name=framework), cluster=cluster, weight=weight)


@pytest.fixture(autouse=True)
def _dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "mixtures_of", lambda samples: np.zeros(len(samples), dtype=bool))


def test_a_class_is_what_other_groups_tell() -> None:
    many = [sample("a", "h100") for _ in range(int(SPARSE))]
    rows = [*many, sample("a", "h100"), sample("b", "h100"), sample("b", "h200"), sample("a", "b200")]
    groups = [*["first"] * len(many), "second", "third", "fourth", "fifth"]
    classes = classes_of(rows, np.zeros(len(rows), dtype=bool), groups)
    assert set(classes[: len(many)]) == {"sparse"}  # without its own group one run of its trainer on its card is left
    assert list(classes[len(many) :]) == ["measured", "sparse", "unmeasured", "unmeasured"]


def test_groups_weigh_as_the_root_of_their_rows_and_farther_classes_are_no_narrower() -> None:
    ratio = np.concatenate([np.full(100, 1.0), np.linspace(0.8, 1.4, 25)])
    groups = ["large"] * 100 + [f"small {at}" for at in range(25)]
    classes = np.full(125, "measured")
    told = {"class": ratio, "kind": ratio}
    bounds = bounds_of(told, np.ones(125), groups, np.zeros(125, dtype=bool), classes)
    low, high, rows = bounds["dense_measured"]
    assert rows == 125
    assert 0.8 < low < 0.9  # 25 small groups weigh 25, the large one 10
    assert 1.3 < high < 1.4
    assert bounds["dense_sparse"][:2] == bounds["dense_unmeasured"][:2] == (low, high)
    assert bounds["mixture_measured"][:2] == (0.97, 1.03)


def test_nobody_is_bounded_by_itself() -> None:
    """Fifteen groups off by little and one by three: its range is that of the others, theirs holds it."""
    ratio = np.concatenate([np.tile([0.95, 1.0, 1.05], 15), [3.0, 3.0, 3.0]])
    groups = [f"group {at // 3}" for at in range(48)]
    rows = [sample("a", "h100") for _ in range(48)]
    bounds = bounds_without(ratio, np.ones(48), rows, groups)
    assert bounds[-1][1] < 1.1
    assert all(high > 2.0 for _, high in bounds[:45])


def test_nine_of_ten_rows_of_groups_to_come_lie_inside() -> None:
    random = np.random.default_rng(11)
    inside = []
    for _ in range(20):
        off = np.exp(np.repeat(random.normal(0, 0.1, 40), 5) + random.normal(0, 0.05, 200))
        groups = [f"group {at // 5}" for at in range(200)]
        bounds = bounds_without(off, np.ones(200), [sample("a", "h100") for _ in range(200)], groups)
        inside += [low <= one <= high for one, (low, high) in zip(off, bounds, strict=True)]
    assert 0.86 < np.mean(inside) < 0.96
