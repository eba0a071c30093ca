"""Pools of cards under a power cap: each at the clock that its own work leaves it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trilemma.timing.capping import at_cap
from trilemma.timing.pools import Pools

#: Turns in which the clock and the batch of a pool settle, and the clock below which they have.
_TURNS, _SETTLED = 8, 0.002


def pools_under_cap(pools: Pools, **load: Any) -> tuple[Pools, float, float]:
    """``pools`` of cards under a cap, and the clocks of prefill and of decode (1 without a cap), for ``load``.

    Prefill computes at the clock that it has while it computes; the clock of decode changes with its batch, and that with the
    clock, which settles in a few turns.

    Clocks are shares, numbers of one plan. Source: `trilemma.timing.clocks`.
    """
    machine, first = pools.machine, pools.prefill_machine or pools.machine
    if machine.power_cap is None:
        return pools, 1.0, 1.0
    prompt = pools.prefill_worker().work
    at, slower = at_cap([(prompt, 1.0)], first, pools.work, machine.power_cap, seconds=prompt.total_s)
    capped, clock = replace(pools, prefill_machine=slower), 1.0
    for _ in range(_TURNS):
        worker = pools.decode_worker(capped.speed(**load).serving.running)
        passes = [(worker.step, worker.steps_per_token)]
        found, decoding = at_cap(passes, machine, pools.work, machine.power_cap, seconds=worker.token_s)
        clock, settled = float(found), abs(float(found) - clock) < _SETTLED
        capped = replace(capped, machine=decoding)
        if settled:
            break
    return capped, float(at), clock
