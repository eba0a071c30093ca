"""What is yet to come beside the arrivals of a trace: requests that follow an answer, and prompts whose cache is on its way."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trilemma.simulation.serving.traffic import Arrival, ServedRequest

if TYPE_CHECKING:
    from trilemma.simulation.serving.replica import EngineReplica

#: The engine that takes a request; None where it is refused.
Choice = Callable[[ServedRequest, "Sequence[EngineReplica]"], int | None]


class Later:
    """Arrivals and requests by the time at which they are due; of those alike the one that was told of first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Arrival | ServedRequest, Choice | None]] = []
        self._told = 0

    @property
    def due_s(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def arrives(self, arrival: Arrival) -> None:
        """``arrival`` comes at its time, as those of the traffic do."""
        self._push(arrival.arrival_s, arrival, None)

    def joins(self, request: ServedRequest, choose: Choice) -> None:
        """``request`` is ready for one of the engines that ``choose`` knows at its ``ready_s``."""
        self._push(request.ready_s, request, choose)

    def next(self) -> tuple[Arrival | ServedRequest, Choice | None]:
        _, _, what, choose = heapq.heappop(self._heap)
        return what, choose

    def _push(self, due_s: float, what: Arrival | ServedRequest, choose: Choice | None) -> None:
        self._told += 1
        heapq.heappush(self._heap, (due_s, self._told, what, choose))
