"""Cards under a power cap: the clock that it leaves them under a load, and the load at that clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.clocks import clock_law, clock_under_cap, clocked_parts, clocked_share
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.pass_time import PassTime
from trilemma.timing.power import passes_activity, power_terms

#: Passes, and how many of each.
Passes = Sequence[tuple[PassTime, Numbers]]


def under_cap(turned: Callable[..., Any], work: ModelWork, machine: Machine, layout: Layout, **asked: Any) -> Any:
    """What ``turned`` makes of a load, at the clock at which cards under a cap draw no more than it.

    ``turned`` answers with its ``passes``, its ``cycle`` and its ``clock``; its times are in seconds, numbers or arrays in the
    shape of the load.
    Source: `trilemma.timing.clocks`.
    """
    turn = turned(work, machine, layout, **asked)
    if machine.power_cap is None:
        return turn
    clock, slower = at_cap(turn.passes, machine, work, machine.power_cap, seconds=turn.cycle.tpot_s)
    return replace(turned(work, slower, layout, **asked), clock=clock)


def at_cap(passes: Passes, machine: Machine, work: ModelWork, cap: float, *, seconds: Any) -> tuple[Any, Machine]:
    """The clock at which cards draw no more than the share ``cap`` of their limit while they run ``passes`` in ``seconds``, and
    the machine at it.

    Seconds and shares, numbers or arrays in the shape of the passes. Source: `trilemma.timing.clocks`.
    """
    law, terms = clock_law(machine.accelerator), power_terms(machine.accelerator)
    parts: dict[str, Any] = {}
    for one, times in passes:
        for name, share in clocked_parts(one).items():
            parts[name] = parts.get(name, 0.0) + share * one.total_s * times / seconds
    clocked = np.minimum(clocked_share(parts, law), 1.0)
    clock = clock_under_cap(cap, passes_activity(passes, machine, work, seconds), terms, law, clocked)
    return clock, machine.at_clock(clock, launches=law.launches, memory=law.memory, compute=law.compute)
