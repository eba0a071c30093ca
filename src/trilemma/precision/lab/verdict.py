"""Verdicts: whether a recipe fails, when, why, what foretold it, and what mends it, from a matrix of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from trilemma.columns import column
from trilemma.errors import InputError
from trilemma.precision.lab.alarms import Alarm, Thresholds, first_alarm
from trilemma.precision.lab.recipes import REFERENCE, LabRecipe
from trilemma.precision.lab.records import LabRun, Regime
from trilemma.precision.lab.warning import early_warning, final_gaps, outlived_warning, spearman

#: stopped: NaN or infinity. blown up: ends above where it began. worse: above the reference by more than seed noise.
RecipeOutcome = Literal["reference", "as good", "better", "worse", "blown up", "stopped"]
FAILED = ("stopped", "blown up", "worse")

#: A gap below this is not called a failure even where seeds agree on it: curves are read to two digits.
_LEAST_GAP = 0.05
#: Recipes whose mean gap is below this share of the reference's loss tell the noise between seeds; one that fails has a
#: spread of its own.
_QUIET_SHARE = 0.2
#: Steps over which a loss curve is smoothed before "when" is read from it.
_SMOOTHING_STEPS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeVerdict:
    """How one recipe did under one regime, over all seeds.

    ``gap`` is the mean over seeds of final loss above the reference of the same seed (NaN where any seed stopped), ``noise``
    the half width of its 95 % interval. ``since_step``: first step from which the gap stays beyond noise, or the first stop.
    ``stops``: seed → step. ``alarm``: the earliest alarm of any seed.
    """

    COLUMNS: ClassVar = {
        "recipe_name": column("recipe"), "outcome": {}, "final_loss": column(finite=True), "gap": column(finite=True),
        "noise": column("gap_half_width95", keep="none"), "inside_noise": column("inside_seed_noise"),
        "since_step": column(keep="none"), "stops": column(keep="empty"), "seeds": {},
        "alarm": column("earliest_alarm", keep="none"), "warning": column("early_warning"), "low_precision_share": {},
    }  # fmt: skip

    recipe: LabRecipe
    outcome: RecipeOutcome
    final_loss: float
    gap: float
    noise: float | None
    since_step: int | None
    stops: dict[int, int]
    seeds: int
    alarm: Alarm | None
    warning: float
    low_precision_share: float

    @property
    def inside_noise(self) -> bool:
        """Whether seeds alone explain the gap."""
        return self.noise is not None and math.isfinite(self.gap) and abs(self.gap) <= self.noise

    @property
    def failed(self) -> bool:
        return self.outcome in FAILED

    @property
    def recipe_name(self) -> str:
        return self.recipe.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Mitigation:
    """A recipe that did better than a failing one, and the settings in which it differs (name → (failing, this))."""

    COLUMNS: ClassVar = {
        "recipe_name": column("recipe"), "outcome": {}, "gap": column(finite=True), "low_precision_share": {},
        "differences": column("changes", keep="empty"),
    }  # fmt: skip

    verdict: RecipeVerdict
    changes: dict[str, tuple[Any, Any]]

    @property
    def recipe_name(self) -> str:
        return self.verdict.recipe_name

    @property
    def outcome(self) -> RecipeOutcome:
        return self.verdict.outcome

    @property
    def gap(self) -> float:
        return self.verdict.gap

    @property
    def low_precision_share(self) -> float:
        return round(self.verdict.low_precision_share, 4)

    @property
    def differences(self) -> dict[str, Any]:
        return {name: {"from": before, "to": after} for name, (before, after) in self.changes.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RegimeVerdict:
    """All recipes under one regime, best first; ``mitigations``: failing recipe → what did better, best first."""

    COLUMNS: ClassVar = {
        "regime": {},
        "seed_noise": column(keep="none"),
        "recipes": {},
        "mitigations": column(keep="empty"),
    }

    regime: Regime
    recipes: tuple[RecipeVerdict, ...]
    seed_noise: float | None
    mitigations: dict[str, tuple[Mitigation, ...]] = field(default_factory=dict)

    def of(self, name: str) -> RecipeVerdict:
        """The verdict of one recipe. Raises `KeyError`."""
        return next(verdict for verdict in self.recipes if verdict.recipe.name == name)


def judge(runs: Sequence[LabRun], *, thresholds: Thresholds | None = None) -> list[RegimeVerdict]:
    """Verdicts by regime, in the order in which the regimes come. Raises `InputError` where a regime lacks its reference."""
    found = []
    for regime in dict.fromkeys(run.regime for run in runs):
        mine = [run for run in runs if run.regime == regime]
        found.append(_judge_regime(regime, mine, thresholds or Thresholds.shipped()))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class WarningRank:
    """Spearman's rank correlation of early warning and final gap, over so many runs (NaN: too few)."""

    spearman: float = field(metadata=column(finite=True))
    runs: int


def warning_rank(runs: Sequence[LabRun]) -> WarningRank:
    """Rank correlation of early warning and final gap, and over how many runs.

    References are left out, and so are runs that stopped within the early steps: there was nothing left to warn of.
    """
    others = [run for run in runs if run.recipe.name != REFERENCE and outlived_warning(run)]
    references = [run for run in runs if run.recipe.name == REFERENCE]
    if len(others) < 3:
        return WarningRank(spearman=math.nan, runs=len(others))
    correlation = spearman([early_warning(run) for run in others], final_gaps(others, references))
    return WarningRank(spearman=correlation, runs=len(others))


def _judge_regime(regime: Regime, runs: Sequence[LabRun], thresholds: Thresholds) -> RegimeVerdict:
    references = {run.seed: run for run in runs if run.recipe.name == REFERENCE}
    if not references or any(run.seed not in references for run in runs):
        raise InputError(f"a regime lacks runs of {REFERENCE}, which gaps are measured against; add it for every seed")
    by_recipe: dict[LabRecipe, list[LabRun]] = {}
    for run in runs:
        by_recipe.setdefault(run.recipe, []).append(run)
    gaps = {
        recipe: [run.final_loss - references[run.seed].final_loss for run in mine] for recipe, mine in by_recipe.items()
    }
    level = float(np.mean([run.final_loss for run in references.values()]))
    spread = _seed_noise([gaps[recipe] for recipe in gaps if recipe.name != REFERENCE], level)
    verdicts = [
        _judge_recipe(recipe, mine, gaps[recipe], references, spread, thresholds) for recipe, mine in by_recipe.items()
    ]
    ordered = tuple(sorted(verdicts, key=_order))
    mitigations = {bad.recipe.name: _mitigations(bad, ordered) for bad in ordered if bad.failed}
    return RegimeVerdict(
        regime=regime, recipes=ordered, seed_noise=None if spread is None else spread[0], mitigations=mitigations
    )


def _order(verdict: RecipeVerdict) -> tuple[int, float]:
    """Best first: what finished by its loss, then what stopped, the latest first."""
    if verdict.stops:
        return 1, -min(verdict.stops.values())
    return 0, verdict.final_loss


def _mitigations(bad: RecipeVerdict, ordered: Sequence[RecipeVerdict]) -> tuple[Mitigation, ...]:
    """Low-precision recipes that did better than ``bad``.

    First those that do not fail and keep as much arithmetic narrow, by the number of changed settings: their gaps are all
    inside noise. Then those that do not fail but give speed up, then those that fail less.
    """
    better = [
        Mitigation(verdict=one, changes=bad.recipe.differs_from(one.recipe))
        for one in ordered[: ordered.index(bad)]
        if one.recipe.low_precision and (not one.failed or one.outcome != bad.outcome or _clearly_better(one, bad))
    ]

    def rank(one: Mitigation) -> tuple[bool, bool, int]:
        failed = one.verdict.failed
        gives_up_speed = one.verdict.low_precision_share < bad.low_precision_share
        return failed, gives_up_speed and not failed, 0 if failed else len(one.changes)

    return tuple(sorted(better, key=rank))


def _clearly_better(one: RecipeVerdict, bad: RecipeVerdict) -> bool:
    """Of two that fail alike: stops later, or ends lower by more than noise."""
    if bad.stops:
        return min(one.stops.values()) > min(bad.stops.values())
    return bad.final_loss - one.final_loss > (bad.noise or 0.0)


def _judge_recipe(
    recipe: LabRecipe,
    runs: Sequence[LabRun],
    gaps: Sequence[float],
    references: dict[int, LabRun],
    spread: tuple[float, int] | None,
    thresholds: Thresholds,
) -> RecipeVerdict:
    stops = {run.seed: run.stopped_at for run in runs if run.stopped_at is not None}
    gap = float(np.mean(gaps))
    noise = None if spread is None else _t_quantile(spread[1]) * spread[0] / math.sqrt(len(runs))
    final = float(np.mean([run.final_loss for run in runs]))
    raised = [alarm for run in runs if (alarm := first_alarm(run, thresholds)) is not None]
    start = float(np.mean([run.losses[0] for run in references.values()]))
    bar = max(_LEAST_GAP, noise or 0.0)
    outcome: RecipeOutcome
    if recipe.name == REFERENCE:
        outcome = "reference"
    elif stops:
        outcome = "stopped"
    elif final > start:
        outcome = "blown up"
    elif abs(gap) <= bar:
        outcome = "as good"
    else:
        outcome = "worse" if gap > 0 else "better"
    since = None
    if stops:
        since = min(stops.values())
    elif outcome in FAILED and all(one.stopped_at is None for one in references.values()):
        since = _since(runs, references, bar)
    return RecipeVerdict(
        recipe=recipe,
        outcome=outcome,
        final_loss=final,
        gap=gap,
        noise=noise,
        since_step=since,
        stops=stops,
        seeds=len(runs),
        alarm=min(raised, key=lambda alarm: alarm.step, default=None),
        warning=float(np.mean([early_warning(run) for run in runs])),
        low_precision_share=runs[0].low_precision_share,
    )


def _since(runs: Sequence[LabRun], references: dict[int, LabRun], bar: float) -> int:
    """First step from which the smoothed mean gap stays above ``bar``."""
    gaps = np.mean([np.subtract(run.losses, references[run.seed].losses) for run in runs], axis=0)
    window = min(_SMOOTHING_STEPS, len(gaps))
    smooth = np.convolve(gaps, np.ones(window) / window, mode="valid")
    below = np.flatnonzero(smooth <= bar)
    return int(below[-1]) + 1 if below.size else 0


def _seed_noise(gaps: Sequence[Sequence[float]], level: float) -> tuple[float, int] | None:
    """Standard deviation of one paired gap, pooled over recipes that neither stop nor fail badly, and its degrees of freedom.

    The same batches do not make curves alike: tiny differences grow. None where no recipe has two seeds.
    """
    quiet = [
        np.asarray(mine) for mine in gaps if len(mine) > 1 and abs(float(np.mean(mine))) < _QUIET_SHARE * abs(level)
    ]
    freedom = sum(len(mine) - 1 for mine in quiet)
    if freedom == 0:
        return None
    squares = sum(float(((mine - mine.mean()) ** 2).sum()) for mine in quiet)
    return math.sqrt(squares / freedom), freedom


def _t_quantile(freedom: int) -> float:
    """The 97.5 % point of Student's t, exact for 1 and 2 degrees, else Cornish-Fisher (Abramowitz and Stegun 26.7.5)."""
    if freedom <= 2:
        return {1: 12.706, 2: 4.303}[freedom]
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
