"""How fast a job is where it stands: beside the place where it is fastest, with what it makes of its cards there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from trilemma.simulation.cluster.state import ClusterState, PlacedPod


class JobPlace(NamedTuple):
    """``level`` is the smallest domain that holds all cards. Groups of ``beside`` neighbours lie within one node each and groups
    of ``linked`` within one NVLink domain, in whatever order ranks are given cards; ``card`` names the kind."""

    gpus: int
    level: str
    beside: int
    linked: int
    card: str


class PlacedSpeed(NamedTuple):
    """``pace``: times as long as where the job is fastest; ``mfu`` there, None where nobody knows."""

    pace: float
    mfu: float | None


class PlacementTiming(Protocol):
    """What tells the speed of one kind of job by its place."""

    def placed(self, place: JobPlace) -> PlacedSpeed:
        """The speed at ``place``."""

    def nearest(self, gpus: int) -> PlacedSpeed:
        """The speed of ``gpus`` where they are as near to each other as the cluster allows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedTiming:
    """A measured profile: times as long by level (1 where it is not stated), and the use of the cards where it is fastest."""

    pace: Mapping[str, float] = field(default_factory=dict)
    mfu: float | None = None

    def placed(self, place: JobPlace) -> PlacedSpeed:
        return self._at(self.pace.get(place.level, 1.0))

    def nearest(self, gpus: int) -> PlacedSpeed:  # noqa: ARG002 - a profile is of one size
        return self._at(1.0)

    def _at(self, pace: float) -> PlacedSpeed:
        return PlacedSpeed(pace, None if self.mfu is None else self.mfu / pace)


def place_of(state: ClusterState, placed: Sequence[PlacedPod], level: str) -> JobPlace:
    """Where the cards of ``placed`` stand to each other; ``level`` as `ClusterState.span` says."""
    on_nodes: Counter[int] = Counter()
    for one in placed:
        on_nodes[one.node] += len(one.cards)
    beside = linked = math.gcd(*on_nodes.values())
    if "nvlink" in state.domains:
        linked = math.gcd(*_by_domain(state, on_nodes).values())
    return JobPlace(sum(on_nodes.values()), level, beside, linked, state.nodes[placed[0].node].model)


def _by_domain(state: ClusterState, on_nodes: Mapping[int, int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for node, many in on_nodes.items():
        found[int(state.domains["nvlink"][node])] += many
    return found
