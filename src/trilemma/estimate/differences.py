"""Commands before and after a change: which figures moved, by how much, which for the worse, and what no longer starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from trilemma.columns import column
from trilemma.estimate.estimate import Estimate, SpeedEstimate
from trilemma.quantities import GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureDifference:
    """One figure of both; None where an estimate has none. ``change`` is the ratio less one, where both have one."""

    figure: str
    before: float | None = field(default=None, metadata=column(keep="none"))
    after: float | None = field(default=None, metadata=column(keep="none"))
    change: float | None = field(default=None, metadata=column(keep="none"))
    worse: bool = False


def _speed(read: Callable[[SpeedEstimate], float | None]) -> Callable[[Estimate], float | None]:
    return lambda estimate: None if estimate.speed is None else read(estimate.speed)


#: Figure → how it is read, and whether more of it is worse.
FIGURES: Mapping[str, tuple[Callable[[Estimate], float | None], bool]] = {
    "memory_gib_per_gpu": (lambda one: one.memory.total.value / GIB, True),
    "kv_cache_tokens": (lambda one: None if one.cache is None else one.cache.tokens.value, False),
    "max_concurrency": (lambda one: None if one.cache is None else one.cache.max_concurrency, False),
    "ttft_ms": (_speed(lambda one: None if one.ttft_s is None else one.ttft_s.interval.value * 1e3), True),
    "tpot_ms": (_speed(lambda one: None if one.tpot_s is None else one.tpot_s.interval.value * 1e3), True),
    "output_tokens_per_s": (
        _speed(lambda one: None if one.output_tokens_per_s is None else one.output_tokens_per_s.value), False,
    ),
    "step_s": (_speed(lambda one: None if one.step_s is None or one.tpot_s else one.step_s.interval.value), True),
    "gpus": (lambda one: float(one.question.cluster.gpus), True),
    "usd_per_hour": (lambda one: None if one.usd_per_hour is None else one.usd_per_hour.value, True),
    "usd_per_million_tokens": (
        lambda one: None if one.usd_per_million_tokens is None else one.usd_per_million_tokens.value, True,
    ),
}  # fmt: skip


def differences(
    before: Estimate | None, after: Estimate | None, *, least: float = 0.01
) -> tuple[FigureDifference, ...]:
    """The figures that changed by more than the share ``least``, or that one of both alone has (None: no estimate)."""
    found = []
    for name, (read, more_is_worse) in FIGURES.items():
        old, new = (None if one is None else read(one) for one in (before, after))
        change = new / old - 1 if old and new is not None else None
        if old == new or (change is not None and abs(change) <= least):
            continue
        worse = change is not None and (change > 0) is more_is_worse
        found.append(FigureDifference(figure=name, before=old, after=new, change=change, worse=worse))
    return tuple(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedSide:
    """One command, judged; ``why`` says why it could not be, and then no figure stands beside it."""

    command: str
    fits: bool = False
    stage: str = ""
    probability: float | None = None
    reason: str = ""
    why: str = ""
    estimate: Estimate | None = field(default=None, metadata=column(hidden=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandDifference:
    """One command before and after; None where there is none."""

    name: str
    before: JudgedSide | None = field(default=None, metadata=column(keep="none"))
    after: JudgedSide | None = field(default=None, metadata=column(keep="none"))
    figures: tuple[FigureDifference, ...] = field(default=(), metadata=column(keep="empty"))

    @property
    def changed(self) -> bool:
        """Whether anything is to be told: a figure, the verdict, or that a side cannot be judged."""
        if self.before is None or self.after is None:
            return True
        unjudged = bool(self.after.why) and self.before.command != self.after.command
        return bool(self.figures) or unjudged or _outcome(self.before) != _outcome(self.after)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangesJudged:
    """Commands that changed, how many did not, and by how much figures may be worse ("" for all)."""

    schema: Literal["trilemma/diff@1"] = "trilemma/diff@1"
    commands: tuple[CommandDifference, ...] = field(default=(), metadata=column(keep="empty"))
    unchanged: int = 0
    allowed: Mapping[str, float] = field(default_factory=dict, metadata=column(exact=True, keep="empty"))


def objections(one: CommandDifference, allowed: Mapping[str, float]) -> tuple[str, ...]:
    """Why a change must not go on: what it starts no longer starts, or a figure is worse by more than ``allowed``."""
    found = []
    if one.after is not None and not one.after.fits and not one.after.why and (one.before is None or one.before.fits):
        found.append("does not start")
    for row in one.figures:
        most = allowed.get(row.figure, allowed.get("", None))
        if row.worse and row.change is not None and most is not None and abs(row.change) > most:
            found.append(f"{row.figure} is {abs(row.change):.1%} worse, {most:.1%} is allowed")
    return tuple(found)


def _outcome(side: JudgedSide) -> tuple[bool, str, str]:
    return side.fits, side.stage, side.why
