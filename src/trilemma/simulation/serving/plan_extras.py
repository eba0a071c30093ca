"""What a simulated engine has beside its cards' cache: memory of the host that caches leave for, adapters, a scheduler ahead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.errors import InputError
from trilemma.estimate.timed_plan import TimedPlan
from trilemma.plans import ServeOptions
from trilemma.simulation.serving.adapter_bank import AdapterBank
from trilemma.simulation.serving.host_cache import HostCache
from trilemma.simulation.serving.schedulers import HostCacheRules, host_cache_of, host_keeps_of
from trilemma.timing.adapters import AdapterCost, adapter_cost
from trilemma.timing.eras import works_ahead
from trilemma.timing.host_weights import copied_bytes_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtrasAsked:
    """What is asked of an engine beside its plan: ``host_cache_bytes`` of the host's memory for its caches (0: none), adapters
    (``serves_adapters``), of which the host keeps ``host_adapters`` (None: as the engine does) and reads others for
    ``adapter_read_s``, and whether the scheduler works ``ahead`` of its cards (None: as the engine does)."""

    host_cache_bytes: float = 0.0
    serves_adapters: bool = False
    host_adapters: int | None = None
    adapter_read_s: float = 0.0
    ahead: bool | None = None


NOTHING_MORE = ExtrasAsked()


@dataclass(frozen=True, kw_only=True, slots=True)
class HostShare:
    """``blocks`` of the host's memory for the caches of one engine; each comes back in ``block_s``."""

    blocks: int
    block_s: float
    block_bytes: float
    rules: HostCacheRules

    def slower(self, factor: float) -> HostShare:
        return replace(self, block_s=self.block_s * factor)

    def made(self) -> HostCache:
        return HostCache(
            self.blocks, block_s=self.block_s, writes_through=self.rules.writes_through, before=self.rules.before
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterShare:
    """``slots`` adapters of ``rank`` at once; the host keeps ``kept``, others are read for ``read_s``."""

    slots: int
    rank: int
    cost: AdapterCost
    kept: float
    read_s: float

    def slower(self, factor: float) -> AdapterShare:
        return replace(self, cost=self.cost.slower(factor), read_s=self.read_s * factor)

    def made(self) -> AdapterBank:
        return AdapterBank(self.cost, slots=self.slots, kept=self.kept, read_s=self.read_s)


def with_adapters(options: ServeOptions, engine: str, *, slots: int | None, rank: int | None) -> ServeOptions:
    """``options`` under which ``engine`` serves adapters, in its own words. Raises `InputError` where no rules are known."""
    words = engines.traits_of(engine).adapter_flags
    if not words:
        known = ", ".join(engines.traits.those("adapter_flags"))
        raise InputError(f"how {engine} serves adapters is not known here; use one of {known}")
    asked: Mapping[str, Any] = {words["on"]: True, words["slots"]: slots, words["rank"]: rank}
    return replace(options, extra={**options.extra, **{name: one for name, one in asked.items() if one is not None}})


def adapters_of(asked: ExtrasAsked, start: StartUp, timed: TimedPlan, options: ServeOptions) -> AdapterShare | None:
    """The adapters of one engine; None where it serves none."""
    if not asked.serves_adapters:
        return None
    slots = engines.get(timed.machine.engine).adapter_slots(options, version=start.version)
    assert slots is not None
    kept = host_keeps_of(timed.machine.engine)
    return AdapterShare(
        slots=slots.slots,
        rank=slots.rank,
        cost=adapter_cost(timed.model, timed.machine, timed.layout, slots),
        kept=asked.host_adapters or (math.inf if kept == "all" else slots.slots),
        read_s=asked.adapter_read_s,
    )


def host_share_of(
    asked: ExtrasAsked, start: StartUp, timed: TimedPlan, *, engine: str, block_size: int
) -> HostShare | None:
    """The host's memory for the caches of one engine; None where it has none. Raises `InputError` where that cannot be."""
    if not asked.host_cache_bytes:
        return None
    rules = host_cache_of(engine, start.version)
    if timed.machine.accelerator.unified_memory:
        raise InputError(
            "card and host share one memory: a cache that leaves the one is in the other; leave out `kv_offload`"
        )
    block_bytes = float(np.asarray(start.pool.bytes_per_token_per_gpu)) * block_size
    ranks = int(np.max(timed.layout.tp)) * int(np.max(timed.layout.pp))
    blocks = int(asked.host_cache_bytes / (block_bytes * ranks)) if block_bytes else 0
    if blocks < 1:
        raise InputError(
            f"`kv_offload` holds no block of {block_size} tokens; give GiB for the caches of one engine, such as 64"
        )
    seconds = block_bytes / copied_bytes_per_s(timed.machine.cluster, ranks=ranks)
    return HostShare(blocks=blocks, block_s=seconds, block_bytes=block_bytes * ranks, rules=rules)


def ahead_of(asked: ExtrasAsked, start: StartUp, engine: str, options: Mapping[str, Any]) -> bool:
    """Whether the scheduler works ahead of its cards: as asked, or as its flags and its version have it."""
    return works_ahead(engine, start.version, options) if asked.ahead is None else asked.ahead
