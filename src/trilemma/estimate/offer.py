"""What an answer offers beside its figures: price, power, targets held, commands of pools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trilemma.columns import column
from trilemma.intervals import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Dollars of all cards: an hour, and a million tokens where a speed is known."""

    usd_per_hour: Interval = field(metadata=column("usd_per_hour{}", spread=True))
    usd_per_million_tokens: Interval | None = field(metadata=column("usd_per_million_tokens{}", spread=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Power:
    """Watts that all cards draw under the load, their limit, and joules a token where a speed is known. Where it is not known
    what cards do, ``watts`` are their limit and the range reaches down to idle."""

    watts: Interval = field(metadata=column("watts{}", spread=True))
    limit_watts: float
    joules_per_token: Interval | None = field(metadata=column("joules_per_token{}", spread=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyTarget:
    """A latency asked for, and the probability that it holds by the error bar of the figure."""

    name: Literal["ttft", "tpot"]
    target_ms: float
    probability: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolCommand:
    """What to run for each of the ``replicas`` of one pool."""

    pool: str
    replicas: int
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCommand:
    """What to run on nodes ``first_node`` to ``last_node`` of an engine that spans several, written for the first of them;
    NODE0 stands for the address of node 0. ``before_others``: before the command of node 0."""

    first_node: int
    last_node: int
    command: str
    before_others: bool
