"""Two runs side by side, the best of many, and a gate for a new one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.intervals import normal_cdf
from trilemma.runs.better import Better, better_of, gain
from trilemma.runs.run import LedgerRun
from trilemma.runs.store import RunLedger

#: Blocks in which a series is averaged, so that neighbours that are alike do not count as many; the least for a verdict.
_BLOCKS, _FEWEST = 20, 6
#: A difference is told as one where chance makes it less often.
SURE = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigChange:
    """One setting that differs; None where a run does not state it."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureChange:
    """One figure of both: ``change`` is the ratio less one. ``chance`` is how often noise alone moves it so far, where both runs
    keep enough points to say."""

    figure: str
    before: float
    after: float
    change: float
    chance: float | None = None

    @property
    def sure(self) -> bool | None:
        return None if self.chance is None else self.chance < SURE


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDifference:
    before: LedgerRun
    after: LedgerRun
    config: tuple[ConfigChange, ...]
    figures: tuple[FigureChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gated:
    """Whether a run's figure is at most ``tolerance`` worse than that of its baseline; ``gain`` below 0 is worse."""

    run: LedgerRun
    baseline: LedgerRun
    figure: str
    before: float
    after: float
    gain: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.gain >= -self.tolerance


def difference(ledger: RunLedger, before: LedgerRun, after: LedgerRun) -> RunDifference:
    """What differs in configuration and machine, and in the figures of both."""
    old, new = ({**flat(run.config), **flat(run.machine, "machine."), "git": run.git} for run in (before, after))
    config = [
        ConfigChange(key=key, before=old.get(key), after=new.get(key))
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]
    figures = [
        FigureChange(
            figure=name, before=value, after=after.figures[name],
            change=after.figures[name] / value - 1 if value else (0.0 if after.figures[name] == 0 else math.inf),
            chance=_chance(ledger.points(before.id, name)[1], ledger.points(after.id, name)[1]),
        )
        for name, value in before.figures.items()
        if name in after.figures
    ]  # fmt: skip
    return RunDifference(before=before, after=after, config=tuple(config), figures=tuple(figures))


def _chance(before: Sequence[float], after: Sequence[float]) -> float | None:
    """How often noise alone makes means so far apart: Welch's statistic on means of blocks, as a normal deviate widened for few
    blocks by ``sqrt(n / (n - 3))`` (the deviation of Student's t)."""
    if min(len(before), len(after)) < _FEWEST:
        return None
    one, two = _block_means(before), _block_means(after)
    spread = math.sqrt(one.var(ddof=1) / len(one) + two.var(ddof=1) / len(two))
    if spread == 0:
        return 1.0 if one.mean() == two.mean() else 0.0
    freedom = min(len(one), len(two))
    deviations = abs(one.mean() - two.mean()) / spread / math.sqrt(freedom / (freedom - 3))
    return float(2 * (1 - normal_cdf(deviations)))


def _block_means(values: Sequence[float]) -> np.ndarray[Any, Any]:
    blocks = np.array_split(np.asarray(values, dtype=float), min(_BLOCKS, len(values)))
    return np.array([block.mean() for block in blocks])


def best(runs: Sequence[LedgerRun], figure: str, *, better: Better | None = None) -> list[LedgerRun]:
    """Runs that are done and have the figure, best first; the best of each model and machine stands before its others."""
    way = better_of(figure, better)
    having = [run for run in runs if run.status == "done" and figure in run.figures]
    return sorted(having, key=lambda run: run.figures[figure], reverse=way == "higher")


def gate(run: LedgerRun, baseline: LedgerRun, figure: str, *, tolerance: float, better: Better | None = None) -> Gated:
    """Whether ``run`` may take the place of ``baseline``. Raises `InputError` where either lacks the figure."""
    if not 0 <= tolerance < 1:
        raise InputError(f"`tolerance` {tolerance:g} is no share; give 0.02 for 2 %")
    for one in (run, baseline):
        if figure not in one.figures:
            known = ", ".join(sorted(one.figures)[:12]) or "none"
            raise InputError(f"run {one.id} has no figure {shorten(figure)!r}; it has {known}")
    before, after = baseline.figures[figure], run.figures[figure]
    return Gated(
        run=run, baseline=baseline, figure=figure, before=before, after=after, tolerance=tolerance,
        gain=gain(before, after, better_of(figure, better)),
    )  # fmt: skip


def flat(tree: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """A configuration as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{head}{key}.")
        else:
            found[f"{head}{key}"] = value
    return found
