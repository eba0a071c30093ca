"""Requests for adapters: those that a trace names, and those that are drawn for requests that name none."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from trilemma.errors import InputError, shorten
from trilemma.simulation.serving.traffic import Arrival, Follow, Traffic

_MOST_ADAPTERS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterMix:
    """``many`` adapters, the k-th asked for as often as ``k^-skew`` says (0: all alike); ``shares`` add up to 1."""

    words: str
    many: int
    shares: tuple[float, ...]

    @classmethod
    def parse(cls, words: str) -> AdapterMix:
        """``N`` or ``N:SKEW``, such as 100:1. Raises `InputError`."""
        count, _, skewed = words.partition(":")
        try:
            skew = float(skewed) if skewed else 0.0
        except ValueError:
            skew = math.nan
        if not count.isdecimal() or len(count) > 9 or not 1 <= int(count) <= _MOST_ADAPTERS or not 0 <= skew <= 10:
            raise InputError(
                f"`adapters` {shorten(words)!r} is not N or N:SKEW; give a number from 1 and how unevenly they are asked for"
                " (0 to 10), such as 100:1"
            )
        weights = [(at + 1) ** -skew for at in range(int(count))]
        total = sum(weights)
        return cls(words=words, many=int(count), shares=tuple(one / total for one in accumulate(weights)))

    def of(self, name: str, seed: int) -> str:
        """The adapter of what is called ``name``: the same for the same seed."""
        digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
        return f"adapter {min(bisect_left(self.shares, int.from_bytes(digest) / 2**64), self.many - 1) + 1}"


def with_adapter_names(traffic: Traffic, mix: AdapterMix | None, seed: int) -> Traffic:
    """``traffic`` with an adapter for each request that names none (``mix``: None leaves those to the model), the same through a
    session. What one adapter's prompts leave in the cache no other finds."""
    seen = 0

    def named(arrival: Arrival) -> Arrival:
        nonlocal seen
        adapter = arrival.adapter
        if adapter is None and mix is not None:
            seen += 1
            adapter = mix.of(str(seen) if arrival.session is None else f"session {arrival.session}", seed)
        if adapter is None:
            return arrival
        stretches = arrival.stretches
        if stretches and not isinstance(stretches[0], tuple):
            stretches = tuple(("adapter", adapter, one) for one in stretches)
        return arrival._replace(adapter=adapter, stretches=stretches)

    def arrivals() -> Iterator[Arrival]:
        return (named(one) for one in traffic)

    follow = traffic.follow
    following: Follow | None = None
    if follow is not None:

        def following(arrival: Arrival, now_s: float) -> Arrival | None:
            found = follow(arrival, now_s)
            return None if found is None else named(found)

    return Traffic(arrivals(), following)
