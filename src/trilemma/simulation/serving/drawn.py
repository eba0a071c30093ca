"""Traffic that is drawn: arrival processes and length distributions in words, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.quantities import parse_count
from trilemma.simulation.serving.traffic import Arrival

#: Values that are drawn at a time: memory stays bounded, and the values do not depend on how many are asked for.
AT_ONCE = 4096
_LONGEST = 2**30
Draw = Callable[[np.random.Generator, int], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrivalProcess:
    """Gaps between arrivals, as ``words`` say it: drawn in seconds, in groups of ``together`` at the same instant."""

    words: str
    rate: float
    draw: Draw
    together: int = 1

    @classmethod
    def parse(cls, words: str) -> ArrivalProcess:
        """``poisson:R``, ``gamma:R:CV``, ``constant:R``, ``burst`` (all at once) or ``burst:N:EVERY`` (N together every so many
        seconds); R requests a second. Raises `InputError`."""
        kind, *numbers = words.split(":")
        values = [_number(one, words) for one in numbers]
        if kind == "poisson" and len(values) == 1:
            rate = values[0]
            return cls(words=words, rate=rate, draw=lambda random, n: random.exponential(1 / rate, n))
        if kind == "gamma" and len(values) == 2:
            rate, shape = values[0], 1 / values[1] ** 2
            return cls(words=words, rate=rate, draw=lambda random, n: random.gamma(shape, 1 / (rate * shape), n))
        if kind == "constant" and len(values) == 1:
            rate = values[0]
            return cls(words=words, rate=rate, draw=lambda _, n: np.full(n, 1 / rate))
        if kind == "burst" and not values:
            return cls(words=words, rate=math.inf, draw=lambda _, n: np.zeros(n))
        if kind == "burst" and len(values) == 2 and values[0] == int(values[0]):
            many, every = int(values[0]), values[1]
            return cls(words=words, rate=many / every, draw=lambda _, n: np.full(n, every), together=many)
        raise InputError(
            f"`arrivals` {shorten(words)!r} is not known; use poisson:R, gamma:R:CV, constant:R, burst,"
            " burst:N:EVERY or users:N"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthDistribution:
    """Lengths in tokens, as ``words`` say it."""

    words: str
    mean: float
    draw: Draw

    @classmethod
    def parse(cls, words: Any, name: str) -> LengthDistribution:
        """``1024``, ``uniform:LOW:HIGH``, ``normal:MEAN:CV``, ``lognormal:MEAN:CV``, ``exponential:MEAN``; else `InputError`."""
        text = str(words)
        kind, *numbers = text.split(":")
        if not numbers:
            fixed = parse_count(text, what=f"`{name}`")
            if not 1 <= fixed <= _LONGEST:
                raise InputError(f"`{name}` {fixed} is out of range; give a whole number of at least 1")
            return cls(words=text, mean=fixed, draw=lambda _, n: np.full(n, fixed))
        values = [_number(one, text, name) for one in numbers]
        if kind == "uniform" and len(values) == 2 and values[0] <= values[1]:
            low, high = values
            return cls(words=text, mean=(low + high) / 2, draw=lambda r, n: r.integers(int(low), int(high) + 1, n))
        if kind == "normal" and len(values) == 2:
            mean, cv = values
            return cls(words=text, mean=mean, draw=lambda random, n: random.normal(mean, mean * cv, n))
        if kind == "lognormal" and len(values) == 2:
            mean, width = values[0], math.sqrt(math.log1p(values[1] ** 2))
            middle = math.log(mean) - width**2 / 2
            return cls(words=text, mean=mean, draw=lambda random, n: random.lognormal(middle, width, n))
        if kind == "exponential" and len(values) == 1:
            return cls(words=text, mean=values[0], draw=lambda random, n: random.exponential(values[0], n))
        raise InputError(
            f"`{name}` {shorten(text)!r} is not known; use a number, uniform:LOW:HIGH, normal:MEAN:CV, lognormal:MEAN:CV or"
            " exponential:MEAN"
        )


def drawn(
    process: ArrivalProcess, isl: LengthDistribution, osl: LengthDistribution, *, requests: int, seed: int
) -> Iterator[Arrival]:
    """``requests`` requests; gaps, prompts and outputs have a stream of random numbers each: one moves no other."""
    streams = [np.random.default_rng([seed, stream]) for stream in range(3)]
    now_s, made = 0.0, 0
    while made < requests:
        gaps = process.draw(streams[0], AT_ONCE).tolist()
        prompts = _whole(isl.draw(streams[1], AT_ONCE))
        outputs = _whole(osl.draw(streams[2], AT_ONCE))
        for at in range(min(AT_ONCE, requests - made)):
            if process.together == 1 or (made and made % process.together == 0):
                now_s += gaps[at]
            made += 1
            yield Arrival(now_s, prompts[at], outputs[at])


def _whole(values: Any) -> list[int]:
    whole: list[int] = np.clip(np.rint(values), 1, _LONGEST).astype(np.int64).tolist()
    return whole


def _number(text: str, words: str, name: str = "arrivals") -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1e-9 <= value <= 1e9:
        raise InputError(f"`{name}` {shorten(words)!r}: {shorten(text)!r} is not a number above 0")
    return value
