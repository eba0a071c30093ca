"""Requests that wait for answers: users who send the next when one is answered, conversations of several turns, tool calls."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.simulation.serving.drawn import AT_ONCE, LengthDistribution
from trilemma.simulation.serving.traffic import Arrival

_MOST_USERS = 1_000_000


def users_of(words: str) -> int:
    """``users:N``: N users at once. Raises `InputError`."""
    many = words.partition(":")[2]
    if not many.isdecimal() or len(many) > 9 or not 1 <= int(many) <= _MOST_USERS:
        raise InputError(f"`arrivals` {shorten(words)!r} is not users:N; give whole users from 1, such as users:64")
    return int(many)


def seconds_of(words: str) -> LengthDistribution:
    """Seconds of thinking or of a tool: a number (0: none) or a distribution as of lengths. Raises `InputError`."""
    try:
        fixed = float(words)
    except ValueError:
        return LengthDistribution.parse(words, "think")
    if not 0 <= fixed < 1e9:
        raise InputError(f"`think` {shorten(words)!r} is out of range; give seconds from 0")
    return LengthDistribution(words=words, mean=fixed, draw=lambda _, n: np.full(n, fixed))


@dataclass(kw_only=True)
class Conversations:
    """Openings that arrive, and what follows each answer ``think`` seconds later: the next of its turns, whose prompt is all that
    was said and new tokens, or a new conversation where a ``user`` goes on. ``left`` requests are made in all.

    Every stretch of numbers is drawn in the order in which requests are made, the same for the same seed.
    """

    isl: LengthDistribution
    osl: LengthDistribution
    turns: LengthDistribution
    think: LengthDistribution
    left: int
    users: bool
    seed: int
    _turns_left: dict[str, int] = field(default_factory=dict)
    _opened: int = 0

    def __post_init__(self) -> None:
        kinds = (self.isl, self.osl, self.turns, self.think)
        self._isl, self._osl, self._turns, self._think = (
            _drawn_one_by_one(kind, np.random.default_rng([self.seed, 10 + at])) for at, kind in enumerate(kinds)
        )

    def openings(self, times: Iterator[float]) -> Iterator[Arrival]:
        for at_s in times:
            if self.left <= 0:
                return
            yield self._opening(at_s)

    def follow(self, arrival: Arrival, now_s: float) -> Arrival | None:
        """The request that comes of ``arrival``'s end."""
        name = str(arrival.session)
        if self.left <= 0:
            return None
        if self._turns_left.get(name, 0) > 0:
            self._turns_left[name] -= 1
            self.left -= 1
            told = arrival.isl + arrival.osl
            return arrival._replace(
                arrival_s=now_s + max(next(self._think), 0.0),
                isl=told + _whole(next(self._isl)),
                osl=_whole(next(self._osl)),
            )
        self._turns_left.pop(name, None)
        return self._opening(now_s + max(next(self._think), 0.0)) if self.users else None

    def _opening(self, at_s: float) -> Arrival:
        name = str(self._opened)
        self._opened += 1
        self.left -= 1
        more = _whole(next(self._turns)) - 1
        if more:
            self._turns_left[name] = more
        return Arrival(at_s, _whole(next(self._isl)), _whole(next(self._osl)), session=name)


class SessionsInOrder:
    """A trace whose sessions wait: a request comes at its time, or when the one before it in its session has ended."""

    def __init__(self, arrivals: Iterator[Arrival]) -> None:
        self._arrivals = arrivals
        self._under_way: set[str] = set()
        self._held: dict[str, deque[Arrival]] = {}

    def free(self) -> Iterator[Arrival]:
        """Requests that wait for none."""
        for arrival in self._arrivals:
            if arrival.session is None:
                yield arrival
            elif arrival.session in self._under_way:
                self._held.setdefault(arrival.session, deque()).append(arrival)
            else:
                self._under_way.add(arrival.session)
                yield arrival

    def follow(self, arrival: Arrival, now_s: float) -> Arrival | None:
        if arrival.session is None:
            return None
        waiting = self._held.get(arrival.session)
        if not waiting:
            self._held.pop(arrival.session, None)
            self._under_way.discard(arrival.session)
            return None
        following = waiting.popleft()
        return following._replace(arrival_s=max(following.arrival_s, now_s))


def _drawn_one_by_one(kind: LengthDistribution, random: np.random.Generator) -> Iterator[float]:
    return itertools.chain.from_iterable(map(float, kind.draw(random, AT_ONCE)) for _ in itertools.count())


def _whole(value: float) -> int:
    return max(round(value), 1) if math.isfinite(value) else 1
