"""The early warning: what the first three steps say about how a run will end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trilemma.precision.lab.records import LabRun, Probe

#: Steps from the start that the warning looks at.
EARLY_STEPS = 3


def early_warning(run: LabRun) -> float:
    """How much of the first updates low precision takes away, 0 (nothing) … 1 (all): the median of the first three steps.

    A step keeps cosine × min(norm ratio, 1 / norm ratio) of the BF16 gradient, times the share of stored weights that
    moved when asked (not where rounding is stochastic, which is right on average). Where overflow becomes NaN under
    delayed scaling, a step also counts what its range has left: a tensor that fills its range leaves no room to grow, and
    growing by what is left ends the run. A step that is not finite loses all, and so does every later one.
    """
    early = [probe for probe in run.probes if probe.step < EARLY_STEPS]
    if not early or not outlived_warning(run):
        return 1.0
    return float(np.median([1 - _kept(probe, run) for probe in early]))


def outlived_warning(run: LabRun) -> bool:
    """Whether the run was still going after the steps that the warning looks at."""
    return run.stopped_at is None or run.stopped_at >= EARLY_STEPS


def _kept(probe: Probe, run: LabRun) -> float:
    gradient = probe.gradient
    kept = max(0.0, gradient.cosine) * min(gradient.norm_ratio, 1 / gradient.norm_ratio)
    if not math.isfinite(kept):
        return 0.0
    if probe.frozen_percent is not None and not run.recipe.stochastic_storage:
        kept *= 1 - probe.frozen_percent / 100
    if run.recipe.overflow == "nan" and run.recipe.scaling == "delayed":
        kept *= 1 - min(1.0, probe.fill)
    return kept


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation; ties share their mean rank, infinity is the highest. NaN where either side is constant."""
    ranks = [_ranks(np.asarray(values, dtype=float)) for values in (one, other)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return math.nan
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def final_gaps(runs: Sequence[LabRun], references: Sequence[LabRun]) -> list[float]:
    """Final loss above that of the reference of the same regime and seed; infinity where a run stopped."""
    known = {(run.regime, run.seed): run.final_loss for run in references}
    gaps = [run.final_loss - known[run.regime, run.seed] for run in runs]
    return [gap if math.isfinite(gap) else math.inf for gap in gaps]


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2)[inverse]
