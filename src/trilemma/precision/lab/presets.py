"""Experiments with a name: which recipes, under which regime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trilemma.errors import InputError, UnknownName
from trilemma.precision.lab.recipes import RECIPES, REFERENCE, LabRecipe, recipe_named
from trilemma.precision.lab.records import Regime

#: Runs of one call at most: a guard against typing mistakes.
_MOST_RUNS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class LabJob:
    """One run to do."""

    recipe: LabRecipe
    regime: Regime
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """Recipes × regimes × seeds. Every regime holds the reference recipe, which all gaps are measured against."""

    name: str
    says: str
    recipes: tuple[str, ...]
    regimes: tuple[Regime, ...]
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        for name in self.recipes:
            recipe_named(name)
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise InputError(f"seeds {', '.join(map(str, self.seeds))} are none or not distinct; use such as 0,1,2")
        if any(not 0 <= seed < 2**31 for seed in self.seeds):
            raise InputError(f"seeds {', '.join(map(str, self.seeds))} are not all within 0 … {2**31 - 1}")
        if len(self.jobs()) > _MOST_RUNS:
            raise InputError(f"{len(self.jobs()):,} runs are more than {_MOST_RUNS:,}; give fewer recipes or seeds")

    def jobs(self) -> tuple[LabJob, ...]:
        """Every run, the reference first."""
        names = dict.fromkeys((REFERENCE, *self.recipes))
        return tuple(
            LabJob(recipe=RECIPES[name], regime=regime, seed=seed)
            for regime in self.regimes
            for name in names
            for seed in self.seeds
        )


_SCALED = ("current", "delayed", "delayed-warm", "block", "mxfp8")

_ALL = (
    Experiment(
        name="outliers",
        says="two channels of every norm × 300, the function kept: activations beyond 448 as in large models",
        recipes=(
            "naive",
            "naive-head-kept",
            "naive-attention",
            *_SCALED,
            "naive-nan",
            "delayed-nan",
            "delayed-recent-nan",
            "delayed-margin-nan",
            "delayed-warm-nan",
            "delayed-margin-warm-nan",
        ),
        regimes=(Regime(outlier_gain=300.0),),
    ),
    Experiment(
        name="plain",
        says="no outliers: what gradients alone do",
        recipes=(
            "fp16",
            "fp16-unscaled",
            "naive",
            "naive-hybrid",
            "naive-forward",
            "naive-loss-scale",
            "naive-head-kept",
            "naive-ends-kept",
            "naive-attention",
            "current",
            "current-e4m3",
            "delayed",
            "block",
            "mxfp8-floor",
            "mxfp8",
            "nvfp4-plain",
            "nvfp4",
        ),
        regimes=(Regime(),),
    ),
    Experiment(
        name="storage",
        says="what weights are stored in, at a large and a small learning rate",
        recipes=("current", "stored-e4m3", "stored-e4m3-stochastic", "bf16-pure", "bf16-pure-stochastic"),
        regimes=(Regime(learning_rate=2e-3), Regime(learning_rate=2e-4)),
    ),
    Experiment(
        name="fast",
        says="learning rate × 10, gradients clipped and not",
        recipes=("naive-hybrid", "current", "delayed", "mxfp8"),
        regimes=(Regime(learning_rate=2e-2), Regime(learning_rate=2e-2, clip_norm=1e9)),
    ),
    Experiment(
        name="smoke",
        says="three recipes, a few steps: does the lab run here",
        recipes=("naive", "current"),
        regimes=(Regime(steps=8, width=32, layers=1, heads=2, batch=4, context=32, outlier_gain=300.0),),
        seeds=(0,),
    ),
)

PRESETS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}


def preset_named(name: str) -> Experiment:
    """A preset. Raises `UnknownName`."""
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS, hint="see trilemma precision train-lab --list")
    return PRESETS[name]


def sweep(
    experiment: Experiment,
    *,
    learning_rates: Sequence[float] = (),
    clip_norms: Sequence[float] = (),
    outlier_gains: Sequence[float] = (),
    steps: int | None = None,
    probe_every: int | None = None,
) -> Experiment:
    """``experiment`` with every regime taken through all combinations of the values given."""
    regimes = list(experiment.regimes)
    if steps is not None:
        regimes = [replace(regime, steps=steps) for regime in regimes]
    if probe_every is not None:
        regimes = [replace(regime, probe_every=probe_every) for regime in regimes]
    if learning_rates:
        regimes = [replace(regime, learning_rate=rate) for regime in regimes for rate in learning_rates]
    if clip_norms:
        regimes = [replace(regime, clip_norm=norm) for regime in regimes for norm in clip_norms]
    if outlier_gains:
        regimes = [replace(regime, outlier_gain=gain) for regime in regimes for gain in outlier_gains]
    return replace(experiment, regimes=tuple(dict.fromkeys(regimes)))
