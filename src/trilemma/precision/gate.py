"""Are two loss curves the same? A test of equivalence with a margin, honest about what the data cannot say.

The candidate is compared with the reference over the tail of the steps that both reached. Noise inside a run comes from
means of consecutive blocks of the difference (batch means: Law and Kelton, Simulation Modeling and Analysis, §9.5.3, so
that neighbouring steps may correlate, and noise common to both runs cancels). Curves that wander apart and back make even
block means alike; what their correlation says is then worth fewer blocks. Noise between runs comes from repeats with other
seeds, or from a stated prior where there is only one run a side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trilemma.columns import column, document_of
from trilemma.errors import InputError
from trilemma.intervals import NINETY, student_t_95

Array = NDArray[np.float64]
GateOutcome = Literal["pass", "fail", "not enough data"]

_BLOCKS = 20
_MOST_CORRELATION = 0.95
_LEAST_STEPS = 20
_LEAST_TAIL = 10
_LARGEST_LOSS = 1e30
#: Spread of the final loss between seeds of one recipe, as a share, where nothing says otherwise.
_SEED_NOISE = 0.003
#: … but no less than so many standard errors that the noise of single steps leaves in a run's tail: it has shaken the run
#: before its tail too. Runs of the training lab spread by 1.0 (1200 steps, studies/gate_pairs.py) to 2.2 (400 steps) times that.
_SEEDS_OVER_STEPS = 1.4
#: A gap that is surely above zero fails from this share of the margin on: the estimate of a gap at the margin scatters.
_FAILS_FROM = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRules:
    """``margin`` is the relative loss gap that matters; the last ``tail`` share of the common steps is compared.

    ``seed_noise`` is the relative standard deviation of the final loss between seeds of one recipe, used while fewer than
    two runs a side let it be measured; None takes 0.3 %, more where single steps are noisy.
    ``paired`` says that both runs share seed and data, so that it cancels.
    """

    margin: float = 0.01
    tail: float = 0.2
    seed_noise: float | None = None
    paired: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (("margin", 1e-6, 1.0), ("tail", 0.01, 1.0), ("seed_noise", 0.0, 1.0)):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(
                    f"--{name.replace('_', '-')} {value} is out of range; give a share from {low:g} to {high:g}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCounts:
    """Runs a side."""

    reference: int
    candidate: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """``gap`` is (candidate − reference) / reference of the tail means, ``low`` to ``high`` its central 90 % interval.

    *fail* when the interval is above zero and the gap above three quarters of the margin, *pass* when the whole interval
    is below the margin, else *not enough data*, with ``needed_runs`` a side that would settle a gap of zero.
    """

    schema: Literal["trilemma/gate@1"] = "trilemma/gate@1"
    outcome: GateOutcome
    reason: str
    gap: float = field(metadata=column(finite=True))
    low: float = field(metadata=column(finite=True))
    high: float = field(metadata=column(finite=True))
    steps: int
    tail_steps: int
    runs: RunCounts
    needed_runs: int | None = field(default=None, metadata=column(keep="none"))

    def to_json(self) -> dict[str, Any]:
        """The document of ``--json``, figures unrounded."""
        return document_of(self, exact=True)


#: One run: step → loss.
Curve = Mapping[int, float]


def gate(reference: Sequence[Curve], candidate: Sequence[Curve], rules: GateRules | None = None) -> GateResult:
    """Judge the runs of ``candidate`` against those of ``reference`` (one or more curves each, step → loss).

    A candidate whose loss is not finite fails at once; a reference whose loss is not finite is refused. Steps that not
    every run has are left out. Raises `InputError` for curves without steps in common.
    """
    rules = rules or GateRules()
    runs = RunCounts(reference=len(reference), candidate=len(candidate))
    for curve in (*reference, *candidate):
        below = next((step for step in sorted(curve) if curve[step] <= 0), None)
        if below is not None:
            raise InputError(
                f"the loss {curve[below]:g} at step {below} is not above zero; give a cross-entropy or another positive loss"
            )
    for at, curve in enumerate(reference):
        broken = _first_broken(curve)
        if broken is not None:
            raise InputError(
                f"the reference's loss is {curve[broken]} at step {broken} of run {at + 1}; give a run that trained"
            )
    steps = _common_steps([*reference, *candidate])
    for at, curve in enumerate(candidate):
        broken = _first_broken(curve)
        if broken is not None:
            reason = f"the candidate's loss is {curve[broken]} at step {broken} of run {at + 1}"
            return _outcome("fail", reason, math.inf, math.inf, math.inf, steps, 0, runs)
    tail = steps[-max(math.ceil(len(steps) * rules.tail), 1) :]
    if len(steps) < _LEAST_STEPS or len(tail) < _LEAST_TAIL:
        reason = (
            f"{len(steps)} steps in common, {len(tail)} of them in the tail: too few to tell noise from a gap"
            f" (at least {_LEAST_STEPS} and {_LEAST_TAIL})"
        )
        return _outcome("not enough data", reason, math.nan, math.nan, math.nan, steps, len(tail), runs)
    ours = np.array([[curve[step] for step in tail] for curve in candidate])
    theirs = np.array([[curve[step] for step in tail] for curve in reference])
    gap, error, freedom = _gap(theirs, ours, rules)
    return _judged(gap, student_t_95(max(freedom, 1.0)) * error, error, rules, steps, len(tail), runs)


def _gap(reference: Array, candidate: Array, rules: GateRules) -> tuple[float, float, float]:
    """(relative gap, its standard error, degrees of freedom) from tails of shape (runs, steps)."""
    level = float(reference.mean())
    difference = (candidate.mean(axis=0) - reference.mean(axis=0)) / level
    gap = float(difference.mean())
    inside, blocks, shaken = _inside_runs(difference)
    if rules.paired:
        return gap, inside, blocks - 1
    between, repeats = _between_runs(reference / level, candidate / level, rules)
    if repeats:
        return gap, max(inside, between), repeats
    single = len(reference) == len(candidate) == 1
    if rules.seed_noise is None and between < _SEEDS_OVER_STEPS * shaken:
        between = _SEEDS_OVER_STEPS * shaken
        return gap, math.hypot(inside, between) if single else max(inside, between), blocks - 1
    error = math.hypot(inside, between) if single else max(inside, between)
    # The prior is stated, not estimated: only the part from blocks is uncertain (Welch and Satterthwaite).
    return gap, error, (blocks - 1) * (error / inside) ** 4 if inside else math.inf


def _inside_runs(difference: Array) -> tuple[float, float, float]:
    """(standard error of the mean of ``difference`` over steps, how many independent blocks it is worth, the part of the error
    that single steps make).

    Block means that follow a first-order autoregression of correlation r are worth (1 − r) / (1 + r) of their number; the
    estimate of r from n means is low by (1 + 3r) / n (Kendall 1954). What single steps make is seen from neighbouring blocks
    alone, whatever else wanders (von Neumann 1941).
    """
    blocks = np.array([block.mean() for block in np.array_split(difference, min(_BLOCKS, len(difference) // 2))])
    count = len(blocks)
    centred = blocks - blocks.mean()
    squares = float((centred**2).sum())
    if squares == 0:
        return 0.0, count, 0.0
    seen = float((centred[1:] * centred[:-1]).sum()) / squares
    correlation = min(max(seen + (1 + 3 * seen) / count, 0.0), _MOST_CORRELATION)
    worth = count * (1 - correlation) / (1 + correlation)
    shaken = math.sqrt(float((np.diff(blocks) ** 2).mean()) / 2 / count)
    return math.sqrt(squares / (count - 1) / worth), max(worth, 2.0), shaken


def _between_runs(reference: Array, candidate: Array, rules: GateRules) -> tuple[float, float]:
    """Standard error of the gap from run to run, and its degrees of freedom (0: the prior was used)."""
    repeats = len(reference) + len(candidate) - 2
    share = 1 / len(reference) + 1 / len(candidate)
    if repeats < 2:
        return (_SEED_NOISE if rules.seed_noise is None else rules.seed_noise) * math.sqrt(share), 0
    squares = sum(float(((runs.mean(axis=1) - runs.mean()) ** 2).sum()) for runs in (reference, candidate))
    return math.sqrt(squares / repeats * share), repeats


def _judged(
    gap: float, half: float, error: float, rules: GateRules, steps: list[int], tail: int, runs: RunCounts
) -> GateResult:
    low, high = gap - half, gap + half
    if low > 0 and gap > _FAILS_FROM * rules.margin:
        reason = f"the candidate's loss is {gap:.2%} higher ({low:.2%} to {high:.2%}), the margin is {rules.margin:.2%}"
        return _outcome("fail", reason, gap, low, high, steps, tail, runs)
    if high < rules.margin:
        reason = f"the gap of {gap:+.2%} lies below the margin of {rules.margin:.2%} with 95 % confidence (up to {high:+.2%})"
        return _outcome("pass", reason, gap, low, high, steps, tail, runs)
    needed = max(2, math.ceil(min(runs.reference, runs.candidate) * (NINETY * error / rules.margin * 1.5) ** 2) + 1)
    reason = (
        f"the gap of {gap:+.2%} may be anything from {low:+.2%} to {high:+.2%}, the margin is {rules.margin:.2%}:"
        f" about {needed} runs a side would settle it, or a longer tail"
    )
    return _outcome("not enough data", reason, gap, low, high, steps, tail, runs, needed)


def _outcome(
    outcome: GateOutcome, reason: str, gap: float, low: float, high: float, steps: list[int], tail: int,
    runs: RunCounts, needed: int | None = None,
) -> GateResult:  # fmt: skip
    return GateResult(
        outcome=outcome, reason=reason, gap=gap, low=low, high=high, steps=len(steps), tail_steps=tail, runs=runs,
        needed_runs=needed,
    )  # fmt: skip


def _common_steps(curves: Sequence[Curve]) -> list[int]:
    if not curves or not all(curves):
        raise InputError(
            'a loss curve without a single step cannot be compared; give lines such as {"step": 1, "loss": 2.3}'
        )
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not common:
        raise InputError("the curves have no step in common; log both at the same steps")
    return common


def _first_broken(curve: Curve) -> int | None:
    """The first step whose loss is not finite, or so large that it might as well not be."""
    return next((step for step in sorted(curve) if not curve[step] < _LARGEST_LOSS), None)
