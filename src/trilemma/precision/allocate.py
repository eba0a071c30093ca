"""Which format for which group: the least loss within a budget of bytes, or the fewest bytes within a loss.

A multiple-choice knapsack: one option for each group, losses taken as additive. They are not below about 4.5 bits, so a
result is a proposal that has to be measured as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trilemma.errors import InputError

#: States of the dynamic programme kept at once; beyond it states of nearly the same bytes are merged.
_MOST_STATES = 60_000
#: Downgrades that pay for an upgrade are sought among so many, cheapest per byte first.
_MOST_DOWNS = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatOption:
    """One format for one group: what it takes and what it loses (nats per token, not negative)."""

    format: str
    bytes: int
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """The options of every group; ``elements`` are parameters by group, for figures in bits."""

    groups: tuple[str, ...]
    options: tuple[tuple[FormatOption, ...], ...]
    elements: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.groups or len(self.groups) != len(self.options) or not all(self.options):
            raise InputError("nothing to allocate: every group needs at least one option")

    @property
    def least_bytes(self) -> int:
        return sum(min(option.bytes for option in options) for options in self.options)

    def bytes_at(self, bits: float) -> int:
        """The budget that ``bits`` per parameter of the groups are."""
        return int(sum(self.elements) * bits / 8)

    def only(self, formats: Iterable[str]) -> Problem | None:
        """The problem with ``formats`` alone; None where a group is left without options."""
        wanted = set(formats)
        kept = tuple(tuple(option for option in options if option.format in wanted) for options in self.options)
        return Problem(groups=self.groups, options=kept, elements=self.elements) if all(kept) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """A format for each group, the bytes they take and the loss predicted as a sum.

    ``how`` is exact, exact to a merge of states ("nearly exact"), greedy, or "uniform FORMAT".
    """

    formats: Mapping[str, str]
    bytes: int
    loss: float
    how: str

    def bits(self, problem: Problem) -> float:
        return 8 * self.bytes / sum(problem.elements)


class Frontier:
    """Every allocation that no other beats in bytes and loss together, by dynamic programming over groups.

    States are (bytes, loss) of the groups so far; dominated ones are dropped, which loses nothing. Beyond 60,000 states those of
    nearly the same bytes are merged and ``exact`` is False.
    """

    def __init__(self, problem: Problem, *, most_bytes: int | None = None) -> None:
        self.problem, self.exact = problem, True
        sizes = np.zeros(1, np.int64)
        losses = np.zeros(1)
        rest = _cheapest_after(problem)
        self._steps: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        for at, options in enumerate(problem.options):
            added = np.array([option.bytes for option in options], np.int64)
            lost = np.array([option.loss for option in options])
            all_sizes = (sizes[:, None] + added).ravel()
            all_losses = (losses[:, None] + lost).ravel()
            chosen = self._undominated(all_sizes, all_losses, None if most_bytes is None else most_bytes - rest[at])
            self._steps.append(((chosen // len(options)).astype(np.int32), (chosen % len(options)).astype(np.int32)))
            sizes, losses = all_sizes[chosen], all_losses[chosen]
        self.bytes, self.losses = sizes, losses

    def within(self, budget_bytes: int) -> Allocation:
        """The least loss in at most ``budget_bytes``. Raises `InputError` below the smallest options."""
        fitting = int(np.searchsorted(self.bytes, budget_bytes, side="right")) - 1
        if fitting < 0:
            raise InputError(
                f"a budget of {budget_bytes:,} bytes is below the {self.problem.least_bytes:,} that the smallest formats take;"
                " give more or add narrower formats"
            )
        return self._allocation(fitting)

    def least_bytes(self, most_loss: float) -> Allocation:
        """The fewest bytes with at most ``most_loss`` predicted. Raises `InputError` where no option is that good."""
        good = np.flatnonzero(self.losses <= most_loss)
        if not good.size:
            raise InputError(
                f"a loss of {most_loss:g} nats is below the {self.losses[-1]:.3g} that the widest formats lose;"
                " allow more or add wider formats"
            )
        return self._allocation(int(good[0]))

    def points(self) -> list[tuple[int, float]]:
        """(bytes, loss) from the smallest to the best."""
        return list(zip(self.bytes.tolist(), self.losses.tolist(), strict=True))

    def _allocation(self, state: int) -> Allocation:
        size, loss = int(self.bytes[state]), float(self.losses[state])
        formats: list[str] = []
        for (parents, picks), options in zip(reversed(self._steps), reversed(self.problem.options), strict=True):
            formats.append(options[picks[state]].format)
            state = int(parents[state])
        named = dict(zip(self.problem.groups, reversed(formats), strict=True))
        return Allocation(formats=named, bytes=size, loss=loss, how="exact" if self.exact else "nearly exact")

    def _undominated(
        self, sizes: NDArray[np.int64], losses: NDArray[np.float64], most: int | None
    ) -> NDArray[np.int64]:
        order = np.lexsort((losses, sizes))
        if most is not None:
            order = order[sizes[order] <= most]
        best = np.minimum.accumulate(losses[order])
        keep = np.ones(len(order), bool)
        keep[1:] = losses[order][1:] < best[:-1]
        order = order[keep]
        if len(order) > _MOST_STATES:
            self.exact = False
            # losses fall along the order: the last state of a bucket is its best, the first state of all must stay
            bucket = (np.arange(len(order)) * _MOST_STATES) // len(order)
            last = np.append(np.flatnonzero(np.diff(bucket)), len(order) - 1)
            order = order[np.unique(np.append(last, 0))]
        return order


def greedy(problem: Problem, budget_bytes: int) -> Allocation:
    """Least loss per byte first: upward from the smallest options and downward from the best, then whatever exchange of
    up to three groups still helps; the better of the two. Raises `InputError` where the smallest options do not fit."""
    if problem.least_bytes > budget_bytes:
        raise InputError(
            f"a budget of {budget_bytes:,} bytes is below the {problem.least_bytes:,} that the smallest formats take;"
            " give more or add narrower formats"
        )
    starts = (_upgraded(problem, budget_bytes), _downgraded(problem, budget_bytes))
    found = (_improved(start, problem, budget_bytes - sum(option.bytes for option in start)) for start in starts)
    chosen = min(found, key=lambda options: sum(option.loss for option in options))
    return Allocation(
        formats={group: option.format for group, option in zip(problem.groups, chosen, strict=True)},
        bytes=sum(option.bytes for option in chosen),
        loss=float(sum(option.loss for option in chosen)),
        how="greedy",
    )


def _upgraded(problem: Problem, budget_bytes: int) -> list[FormatOption]:
    """From the smallest options up the convex hulls, steepest fall of loss per byte first."""
    hulls = [_hull(options) for options in problem.options]
    picks = [0] * len(hulls)
    free = budget_bytes - sum(hull[0].bytes for hull in hulls)
    steps = sorted(
        (_slope(hull[at], hull[at + 1]), group, at) for group, hull in enumerate(hulls) for at in range(len(hull) - 1)
    )
    for _, group, at in steps:
        needed = hulls[group][at + 1].bytes - hulls[group][at].bytes
        if picks[group] == at and needed <= free:
            picks[group], free = at + 1, free - needed
    return [hull[pick] for hull, pick in zip(hulls, picks, strict=True)]


def _downgraded(problem: Problem, budget_bytes: int) -> list[FormatOption]:
    """From the best options down, least loss per byte first; the last step may be larger than needed."""
    chosen = [min(options, key=lambda option: (option.loss, option.bytes)) for options in problem.options]
    excess = sum(option.bytes for option in chosen) - budget_bytes
    while excess > 0:
        smaller = [
            ((option.loss - chosen[group].loss) / min(chosen[group].bytes - option.bytes, excess), group, at)
            for group, options in enumerate(problem.options)
            for at, option in enumerate(options)
            if option.bytes < chosen[group].bytes
        ]
        _, group, at = min(smaller)
        option = problem.options[group][at]
        excess -= chosen[group].bytes - option.bytes
        chosen[group] = option
    return chosen


def uniform(problem: Problem, fmt: str) -> Allocation | None:
    """Every group in ``fmt``; None where one cannot hold it."""
    chosen = [next((option for option in options if option.format == fmt), None) for options in problem.options]
    found = [option for option in chosen if option is not None]
    if len(found) < len(chosen):
        return None
    return Allocation(
        formats=dict.fromkeys(problem.groups, fmt),
        bytes=sum(option.bytes for option in found),
        loss=float(sum(option.loss for option in found)),
        how=f"uniform {fmt}",
    )


def uniforms(problem: Problem) -> list[Allocation]:
    """Every uniform allocation that can be, smallest first."""
    names = dict.fromkeys(option.format for options in problem.options for option in options)
    found = [allocation for name in names if (allocation := uniform(problem, name)) is not None]
    return sorted(found, key=lambda one: (one.bytes, one.loss))


def _cheapest_after(problem: Problem) -> list[int]:
    """Bytes that the groups after each one take at least."""
    least = [min(option.bytes for option in options) for options in problem.options]
    return [sum(least[at + 1 :]) for at in range(len(least))]


def _hull(options: tuple[FormatOption, ...]) -> list[FormatOption]:
    """Options on the lower convex hull of loss over bytes, smallest first."""
    ordered = sorted(options, key=lambda option: (option.bytes, option.loss))
    hull: list[FormatOption] = []
    for option in ordered:
        if hull and option.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _slope(hull[-2], option) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(option)
    return hull


def _slope(low: FormatOption, high: FormatOption) -> float:
    return (high.loss - low.loss) / (high.bytes - low.bytes)


def _improved(chosen: list[FormatOption], problem: Problem, free: int) -> list[FormatOption]:
    """Change one group, or one up and one or two others down, as long as the loss falls and the bytes hold."""
    for _ in range(20 * len(chosen)):
        changes = [
            (option.bytes - chosen[group].bytes, chosen[group].loss - option.loss, group, option)
            for group, options in enumerate(problem.options)
            for option in options
            if option is not chosen[group]
        ]
        best = _best_exchange(changes, free)
        if not best:
            break
        for group, option in best:
            free -= option.bytes - chosen[group].bytes
            chosen[group] = option
    return chosen


_Change: TypeAlias = tuple[int, float, int, FormatOption]


def _best_exchange(changes: list[_Change], free: int) -> list[tuple[int, FormatOption]]:
    """The changes of up to three groups that gain most: (bytes grown, loss gained, group, option) each; empty for none."""
    downs: list[_Change] = sorted((one for one in changes if one[0] < 0), key=lambda one: one[1] / one[0])[:_MOST_DOWNS]
    size = np.array([0, *(one[0] for one in downs)], np.int64)
    gain = np.array([0.0, *(one[1] for one in downs)])
    group = np.array([-1, *(one[2] for one in downs)], np.int64)
    first, second = np.triu_indices(len(size))
    allowed = (group[first] != group[second]) | (second == 0) | (first == 0)
    allowed &= (first != second) | (first == 0)
    first, second = first[allowed], second[allowed]
    order = np.argsort(-(gain[first] + gain[second]), kind="stable")
    first, second = first[order], second[order]
    sizes, gains = size[first] + size[second], gain[first] + gain[second]
    best_gain, best = 1e-15, []
    for grown, gained, own, option in changes:
        if gained <= best_gain:
            continue
        fits = (sizes <= free - grown) & (group[first] != own) & (group[second] != own)
        at = int(np.argmax(fits))
        if fits[at] and gained + gains[at] > best_gain:
            best_gain = gained + float(gains[at])
            downs_taken = [downs[pick - 1] for pick in (int(first[at]), int(second[at])) if pick]
            best = [(own, option), *((one[2], one[3]) for one in downs_taken)]
    return best
