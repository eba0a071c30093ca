"""Engines that come and go: scaled by the load, and lost to failures. A router over those that take requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trilemma.errors import InputError, shorten
from trilemma.simulation.serving.front import RoutingRule
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import ServedRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingRule:
    """From ``fewest`` engines to all: one more is started where more than ``busy`` requests are in flight to each, and takes
    requests ``start_s`` later; one fewer takes any where fewer than half as many would be left, ``cool_s`` after the last change.
    """

    fewest: int
    busy: float
    start_s: float
    cool_s: float

    @classmethod
    def parse(cls, words: str, start_up_s: float | None = None) -> ScalingRule:
        """``FEWEST:BUSY:START:COOL``, such as 1:32:120:300; START may be "auto" where ``start_up_s`` is known. Raises
        `InputError`."""
        told = words.split(":")
        if told[2:3] == ["auto"] and start_up_s is not None:
            told[2] = str(start_up_s)
        try:
            fewest, busy, start_s, cool_s = (float(part) for part in told)
        except ValueError:
            fewest = -1.0
            busy = start_s = cool_s = 0.0
        if not (fewest >= 1 and fewest == int(fewest) and busy > 0 and 0 <= start_s < 1e9 and 0 <= cool_s < 1e9):
            raise InputError(
                f"`autoscale` {shorten(words)!r} is not FEWEST:BUSY:START:COOL (engines, requests each, seconds, seconds), such"
                " as 1:32:120:300"
            )
        return cls(fewest=int(fewest), busy=busy, start_s=start_s, cool_s=cool_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFailure:
    """Engine ``at`` takes no request from ``from_s`` on for ``down_s``; those in it are answered elsewhere, from the start."""

    at: int
    from_s: float
    down_s: float

    @classmethod
    def parse(cls, words: str) -> EngineFailure:
        """``ENGINE:FROM:DOWN``, such as 0:600:300. Raises `InputError`."""
        try:
            at, from_s, down_s = (float(part) for part in words.split(":"))
        except ValueError:
            at, from_s, down_s = -1.0, 0.0, 0.0
        if at < 0 or at != int(at) or from_s < 0 or not down_s > 0:
            raise InputError(
                f"`fail` {shorten(words)!r} is not ENGINE:FROM:DOWN (a number from 0, seconds), such as 0:600:300"
            )
        return cls(at=int(at), from_s=from_s, down_s=down_s)


@dataclass(kw_only=True, slots=True)
class EngineFleet:
    """A router over the engines that take requests now. ``engine_seconds`` is what was started, up and drained alike."""

    route: RoutingRule
    scaling: ScalingRule | None = None
    failures: tuple[EngineFailure, ...] = ()
    engine_seconds: float = 0.0
    most_up: int = 0
    changes: list[tuple[float, int]] = field(default_factory=list)
    _ready_s: list[float] = field(default_factory=list)
    _changed_s: float = -1e18
    _seen_s: float = 0.0

    def __call__(self, request: ServedRequest, engines: Sequence[EngineReplica]) -> int:
        now_s = request.ready_s
        if not self._ready_s:
            count = len(engines) if self.scaling is None else min(self.scaling.fewest, len(engines))
            self._ready_s = [now_s] * count
            self._seen_s, self.most_up = now_s, count
        self.engine_seconds += len(self._ready_s) * (now_s - self._seen_s)
        self._seen_s = now_s
        if self.scaling is not None:
            self._scale(self.scaling, engines, now_s)
        up = [at for at, ready_s in enumerate(self._ready_s) if ready_s <= now_s and not self._is_down(at, now_s)]
        if not up:  # all are down or starting: the first that will be there
            up = [min(range(len(self._ready_s)), key=lambda at: self._back_s(at, now_s))]
        return up[self.route(request, [engines[at] for at in up])]

    def close(self, now_s: float) -> None:
        """The run has ended: what is up is counted to its end."""
        self.engine_seconds += len(self._ready_s) * max(now_s - self._seen_s, 0.0)
        self._seen_s = now_s

    def _scale(self, rule: ScalingRule, engines: Sequence[EngineReplica], now_s: float) -> None:
        many = len(self._ready_s)
        load = sum(engines[at].in_flight for at in range(many))
        if load > rule.busy * many and many < len(engines):
            self._ready_s.append(now_s + rule.start_s)
        elif many > rule.fewest and load < rule.busy * (many - 1) / 2 and now_s - self._changed_s >= rule.cool_s:
            self._ready_s.pop()
        else:
            return
        self._changed_s = now_s
        self.most_up = max(self.most_up, len(self._ready_s))
        self.changes.append((now_s, len(self._ready_s)))

    def _is_down(self, at: int, now_s: float) -> bool:
        return any(one.at == at and one.from_s <= now_s < one.from_s + one.down_s for one in self.failures)

    def _back_s(self, at: int, now_s: float) -> float:
        downs = [one.from_s + one.down_s for one in self.failures if one.at == at and one.from_s <= now_s]
        return max([self._ready_s[at], *downs])
