"""Requests that leave an engine without an answer: it has failed, or their clients have given up."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from trilemma.simulation.serving.traffic import ServedRequest

if TYPE_CHECKING:
    from trilemma.simulation.serving.replica import EngineReplica


def fail(engine: EngineReplica, now_s: float) -> list[ServedRequest]:
    """Everything in ``engine`` is lost; the requests that were in it, as they were when they came."""
    lost = [*engine.running.values(), *engine.waiting]
    for request in engine.running.values():
        if request.last_tick >= 0:
            engine.stop_decoding(request)
        engine.cache.release(request, leaves=0)
    for request in lost:
        request.start_anew()
    engine.running.clear()
    engine.waiting.clear()
    engine.prefilling.clear()
    engine.stop(now_s)
    return lost


def give_up(engine: EngineReplica) -> None:
    """Clients that have waited too long are gone."""
    deadlines = engine.deadlines
    while deadlines and deadlines[0][0] <= engine.now_s:
        _, index, request = heapq.heappop(deadlines)
        if engine.running.get(index) is not request:
            continue
        if request.last_tick >= 0:
            engine.cache.release(request, leaves=engine.stop_decoding(request) - 1)
        else:
            engine.prefilling.remove(request)
            engine.cache.release(request, leaves=request.computed)
        del engine.running[index]
        engine.done(request, engine.now_s)
