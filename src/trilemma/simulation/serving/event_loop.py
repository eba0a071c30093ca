"""The clock of a simulation: arrivals and the ends of what engines do, in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from trilemma.errors import InputError
from trilemma.simulation.serving.front import Front
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import Arrival, ServedRequest

#: Events after which a simulation is taken for one that never ends.
MOST_EVENTS = 2_000_000_000


def run(arrivals: Iterable[Arrival], front: Front, engines: Sequence[EngineReplica]) -> int:
    """Serve ``arrivals``, in the order of their time, to the last; the number of events.

    Of what happens at one instant arrivals come first: an engine that has ended a step sees them.
    """
    heap: list[tuple[float, int, int]] = []  # (end, number of the event, engine)
    events = 0
    coming = iter(arrivals)
    nexts = front.take(next(coming, None))
    while True:
        while heap and engines[heap[0][2]].ends_s != heap[0][0]:
            heapq.heappop(heap)
        if nexts is not None and (not heap or nexts.ready_s <= heap[0][0]):
            at = front.choose(nexts, engines)
            if at is not None and engines[at].submit(nexts, nexts.ready_s):
                events += 1
                heapq.heappush(heap, (_end(engines[at]), events, at))
            nexts = front.take(next(coming, None))
            continue
        if not heap:
            return events
        _, _, at = heapq.heappop(heap)
        engine = engines[at]
        engine.advance()
        if engine.ends_s is not None:
            events += 1
            heapq.heappush(heap, (engine.ends_s, events, at))
        if events > MOST_EVENTS:
            raise InputError("the traffic takes more than two thousand million events; cut it in time")


def _end(engine: EngineReplica) -> float:
    assert engine.ends_s is not None
    return engine.ends_s


__all__ = ["MOST_EVENTS", "ServedRequest", "run"]
