"""What a run made of the host's memory and of adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trilemma.simulation.serving.deployment import SimulatedPlan
from trilemma.simulation.serving.outcome import AdapterUse, HostCacheUse

if TYPE_CHECKING:
    from trilemma.simulation.serving.simulation import SimulatedRun


def host_cache_of_run(plan: SimulatedPlan, done: SimulatedRun) -> HostCacheUse | None:
    """None where caches stay on the card. Where prompts have a pool of their own, they come back there."""
    if plan.host is None:
        return None
    engines = (*done.prefill, *done.engines)
    hosts = [one.cache.host for one in engines if one.cache.host is not None]
    asked = max(sum(one.cache.asked_tokens for one in (done.prefill or done.engines)), 1)
    loads, gigabyte = sum(one.loads for one in hosts), plan.host.block_bytes / 1e9
    return HostCacheUse(
        blocks=plan.host.blocks,
        token_hit_rate=sum(one.cache.host_tokens for one in engines) / asked,
        written_gb=sum(one.stored for one in hosts) * gigabyte,
        read_gb=sum(one.loaded for one in hosts) * gigabyte,
        wait_ms=sum(one.waited_s for one in hosts) / loads * 1e3 if loads else None,
    )


def adapters_of_run(plan: SimulatedPlan, done: SimulatedRun) -> AdapterUse | None:
    """None where no adapters are served."""
    if plan.adapters is None:
        return None
    banks = [one.adapters for one in (*done.prefill, *done.engines) if one.adapters is not None]
    asked, loads = sum(one.asked for one in banks), sum(one.loads for one in banks)
    return AdapterUse(
        slots=plan.adapters.slots,
        rank=plan.adapters.rank,
        slot_hit_rate=1 - loads / asked if asked else 0.0,
        loads=loads,
        reads=sum(one.reads for one in banks),
        load_s=sum(one.load_s for one in banks),
        passed_over=sum(one.passed_over for one in banks),
    )
