"""Does a training plan fit: the card's memory, the host's where state lies there, and what was not counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from typing import Any

import numpy as np

from trilemma.estimate.estimate import Verdict
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.hosts import node_of
from trilemma.intervals import NINETY, Interval, normal_cdf
from trilemma.memory.training import TrainingMemory
from trilemma.memory.traits import coefficients
from trilemma.quantities import GIB, show_gib

#: The chance that a host of which nothing is known has enough.
_UNKNOWN_HOST_HOLDS = 0.9
#: Of a part that is not counted and lies between nothing and its most, small sizes are the likelier ones: its chance falls to
#: zero at the most. The quantiles of that law.
_QUANTILES = tuple(1 - sqrt(1 - (i + 0.5) / 64) for i in range(64))


@dataclass(frozen=True, kw_only=True, slots=True)
class HostNeed:
    """Memory of one node's host in bytes: what the plan keeps there, and what the machine has (``stated`` or assumed)."""

    needed: Interval
    has: Interval | None
    stated: bool

    @property
    def chance(self) -> float:
        """The probability that it is enough. A machine that nobody stated is as likely of any size in its range (log)."""
        if self.has is None:
            return _UNKNOWN_HOST_HOLDS
        if self.stated:
            return self.needed.chance_below(self.has.value)
        low, high = log(self.has.low), log(self.has.high)
        sizes = [low + (high - low) * (i + 0.5) / 32 for i in range(32)]
        return sum(self.needed.chance_below(exp(size)) for size in sizes) / len(sizes)

    @property
    def document(self) -> Mapping[str, Any]:
        """The figures as plain data."""
        has = {} if self.has is None else {"has_low_bytes": int(self.has.low), "has_high_bytes": int(self.has.high)}
        return {
            "needed_bytes": int(self.needed.value), "needed_low_bytes": int(self.needed.low),
            "needed_high_bytes": int(self.needed.high), **has, "stated": self.stated, "words": self.words,
        }  # fmt: skip

    @property
    def words(self) -> str:
        need = f"{show_gib(self.needed.value)} GiB of host memory a node"
        need += f" ({show_gib(self.needed.low)} – {show_gib(self.needed.high)})"
        if self.stated and self.has is not None:
            return f"{need}, which has {show_gib(self.has.value)} GiB"
        if self.has is None:
            return f"{need}; what it has is not known, state it with --host-memory"
        return (
            f"{need}; machines of this kind have {self.has.low / GIB:,.0f} to {self.has.high / GIB:,.0f} GiB (state it with"
            " --host-memory)"
        )


def host_need(memory: TrainingMemory, cluster: Cluster) -> HostNeed | None:
    """What the hosts have to hold; None where nothing lies there."""
    counted = float(memory.host_bytes) * min(cluster.gpus_per_node, cluster.gpus)
    if counted <= 0:
        return None
    facts = coefficients()["host"]
    needed = Interval(
        value=counted * facts["buffers"], low=counted * facts["low"], high=counted * facts["high"]
    )  # fmt: skip
    if cluster.host_memory_bytes is not None:
        return HostNeed(needed=needed, has=Interval.exact(cluster.host_memory_bytes), stated=True)
    node = node_of(cluster)
    if node.low_bytes is None or node.high_bytes is None:
        return HostNeed(needed=needed, has=None, stated=False)
    has = Interval(value=sqrt(node.low_bytes * node.high_bytes), low=node.low_bytes, high=node.high_bytes)
    return HostNeed(needed=needed, has=has, stated=False)


def host_holds(memory: TrainingMemory, cluster: Cluster) -> Any:
    """Whether hosts hold what lies on them with three chances of four, for one plan or a table of them (plans,)."""
    needed = (
        np.asarray(memory.host_bytes) * min(cluster.gpus_per_node, cluster.gpus) * coefficients()["host"]["buffers"]
    )
    node = node_of(cluster)
    has = cluster.host_memory_bytes
    if has is None and (node.low_bytes is None or node.high_bytes is None):
        return needed <= 0
    if has is None:
        has = (node.low_bytes or 0.0) ** 0.75 * (node.high_bytes or 0.0) ** 0.25
    return needed <= has


def training_verdict(
    memory: TrainingMemory, capacity: Interval, host: HostNeed | None, *, pages: bool = False
) -> Verdict:
    """Does the peak stay under what the runtime reports, and what lies on the host under what that has?

    The chance treats both intervals of the card as normal. What is not counted adds between nothing and its most, what is
    there or not is as likely as not, and so are blocks that the allocator would give back, or, where the peak is too high, an
    allocator that keeps nothing apart (``expandable_segments``, which many launchers set); parts whose
    size nobody knows are a share of doubt beside it (`trilemma.estimate.doubt`). ``pages``: moments that are still on the card
    make room for what is missing.
    """
    need = float(memory.device_bytes)
    reserved = memory.reserved
    spread = hypot((reserved.high - reserved.low) / 2, (capacity.high - capacity.low) / 2) / NINETY
    left = capacity.value - need
    moments = memory.ledger.get("optimizer")
    room = left + (float(moments.bytes) if pages and moments is not None else 0.0)
    most = float(memory.uncounted_bytes)
    kept = memory.ledger.get("fragmentation")
    apart = float(kept.bytes) if left < 0 and kept is not None else float(memory.cached_bytes)
    both = (room, room + apart - float(memory.either_bytes))
    chance = sum(_above(one - most * part, spread) for part in _QUANTILES for one in both) / len(_QUANTILES) / len(both)
    beside = 1.0 if host is None else host.chance
    sure = chance * beside
    if left < 0:
        reason = f"the peak needs {show_gib(need)} GiB, {show_gib(-left)} GiB more than the card has"
        return Verdict(stage="oom_runtime", probability=max(1 - sure, 0.5), reason=reason)
    shown = f"{show_gib(left)} GiB of {show_gib(capacity.value)} GiB left at the peak"
    if sure >= 0.5:
        return Verdict(stage="ok", probability=sure, reason=shown)
    if host is not None and beside < chance:
        return Verdict(stage="oom_runtime", probability=1 - sure, reason=f"the plan keeps {host.words}")
    reason = f"{shown}, but {show_gib(most)} GiB more may come of what is not counted"
    return Verdict(stage="oom_runtime", probability=1 - sure, reason=reason)


def _above(left: float, spread: float) -> float:
    """The chance that a normal figure around ``left`` with that standard deviation is above zero."""
    return float(normal_cdf(left / spread)) if spread > 0 else float(left >= 0)
