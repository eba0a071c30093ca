"""The clock of a simulation: arrivals and the ends of what engines do, in the order of time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from trilemma.errors import InputError
from trilemma.simulation.serving.fleet import EngineFailure
from trilemma.simulation.serving.front import Front
from trilemma.simulation.serving.later import Choice, Later
from trilemma.simulation.serving.losses import fail
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import Arrival, ServedRequest

#: Events after which a simulation is taken for one that never ends.
MOST_EVENTS = 2_000_000_000
_NEVER = float("inf")


def run(
    arrivals: Iterable[Arrival], front: Front, engines: Sequence[EngineReplica], failures: Iterable[EngineFailure] = (),
    later: Later | None = None,
) -> int:  # fmt: skip
    """Serve ``arrivals``, in the order of their time, and what comes ``later``, to the last; the number of events. What is in an
    engine that fails is routed anew.

    Of what happens at one instant arrivals come first: an engine that has ended a step sees them.
    """
    heap: list[tuple[float, int, int]] = []  # (end, number of the event, engine)
    events = 0
    left = deque(sorted((one for one in failures if one.at < len(engines)), key=lambda one: one.from_s))
    coming, later = iter(arrivals), later or Later()
    nexts = front.take(next(coming, None))
    while True:
        while heap and engines[heap[0][2]].ends_s != heap[0][0]:
            heapq.heappop(heap)
        ends_s = heap[0][0] if heap else _NEVER
        comes_s = nexts.ready_s if nexts is not None else _NEVER
        due_s = later.due_s
        if left and left[0].from_s <= min(ends_s, comes_s, due_s) < _NEVER:
            failure = left.popleft()
            for request in fail(engines[failure.at], failure.from_s):
                request.ready_s = failure.from_s
                events += _hand(request, front.choose, engines, heap, events)
        elif nexts is not None and comes_s <= ends_s and comes_s <= due_s:
            events += _hand(nexts, front.choose, engines, heap, events)
            nexts = front.take(next(coming, None))
        elif due_s <= ends_s and due_s < _NEVER:
            what, choose = later.next()
            if isinstance(what, Arrival):
                taken = front.take(what)
                assert taken is not None
                later.joins(taken, front.choose)
            else:
                events += _hand(what, choose or front.choose, engines, heap, events)
        elif heap:
            _, _, at = heapq.heappop(heap)
            engine = engines[at]
            engine.advance()
            if engine.ends_s is not None:
                events += 1
                heapq.heappush(heap, (engine.ends_s, events, at))
            if events > MOST_EVENTS:
                raise InputError("the traffic takes more than two thousand million events; cut it in time")
        else:
            return events


def _hand(
    request: ServedRequest,
    choose: Choice,
    engines: Sequence[EngineReplica],
    heap: list[tuple[float, int, int]],
    events: int,
) -> int:
    """Give ``request`` to an engine; how many events that makes."""
    at = choose(request, engines)
    if at is None or not engines[at].submit(request, request.ready_s):
        return 0
    heapq.heappush(heap, (_end(engines[at]), events + 1, at))
    return 1


def _end(engine: EngineReplica) -> float:
    assert engine.ends_s is not None
    return engine.ends_s


__all__ = ["MOST_EVENTS", "ServedRequest", "run"]
