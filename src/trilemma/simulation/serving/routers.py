"""Which of several engines takes a request."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from trilemma.simulation.serving.front import RoutingRule
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import ServedRequest


class InTurn:
    """One engine after the other."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, request: ServedRequest, engines: Sequence[EngineReplica]) -> int:  # noqa: ARG002 - the rule's shape
        at = self._next % len(engines)
        self._next = at + 1
        return at


class LeastLoaded:
    """The engine with the fewest requests in it, the first of those alike."""

    def __call__(self, request: ServedRequest, engines: Sequence[EngineReplica]) -> int:  # noqa: ARG002
        if len(engines) == 1:
            return 0
        return min(range(len(engines)), key=lambda at: engines[at].in_flight)


class PrefixAware:
    """The engine that has most of the prompt in its cache, as long as it is not much busier than the least loaded one; a session
    stays where it was.

    ``most_ahead`` requests more than the least loaded one are too many, whatever is cached.
    """

    def __init__(self, most_ahead: int = 16) -> None:
        self._most_ahead = most_ahead
        self._of_session: dict[Hashable, int] = {}

    def __call__(self, request: ServedRequest, engines: Sequence[EngineReplica]) -> int:
        loads = [one.in_flight for one in engines]
        limit = min(loads) + self._most_ahead
        session = request.arrival.session
        last = self._of_session.get(session)
        if last is not None and loads[last % len(engines)] <= limit:
            return last % len(engines)
        near = [at for at in range(len(engines)) if loads[at] <= limit]
        best = min(near, key=lambda at: (-engines[at].cache.find(request).tokens, loads[at]))
        if session is not None:
            self._of_session[session] = best
        return best


#: Name → rule, made anew for each simulation.
ROUTERS: Mapping[str, Callable[[], RoutingRule]] = {
    "round-robin": InTurn,
    "least-loaded": LeastLoaded,
    "prefix-aware": PrefixAware,
}
