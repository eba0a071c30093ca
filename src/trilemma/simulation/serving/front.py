"""What stands before the engines: the server that takes requests in one after another, refuses some, and the router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import Arrival, ServedRequest


class RoutingRule(Protocol):
    """Which of the engines takes a request."""

    def __call__(self, request: ServedRequest, engines: Sequence[EngineReplica]) -> int: ...


class Front:
    """Takes requests in: each is ready for the scheduler ``handling_s`` after it came, and ``each_s`` after the one before it.

    The first ``prefilling`` of the engines (0: none of them) prefill alone, and take all that comes. Requests longer than
    ``most_tokens``, prompt and output, or with a prompt longer than ``most_prompt`` are refused, as engines refuse them.
    """

    def __init__(
        self, route: RoutingRule, *, handling_s: float, each_s: float, most_tokens: int,
        most_prompt: int, refused: Callable[[Arrival], None], prefilling: int = 0,
    ) -> None:  # fmt: skip
        self._prefilling = prefilling
        self._route, self._handling_s, self._each_s = route, handling_s, each_s
        self._most_tokens, self._most_prompt, self._refused = most_tokens, most_prompt, refused
        self._free_s, self._taken = 0.0, 0

    def take(self, arrival: Arrival | None) -> ServedRequest | None:
        if arrival is None:
            return None
        self._free_s = max(arrival.arrival_s, self._free_s) + self._each_s
        self._taken += 1
        return ServedRequest(self._taken - 1, arrival, self._free_s + self._handling_s)

    def choose(self, request: ServedRequest, engines: Sequence[EngineReplica]) -> int | None:
        """The engine that takes ``request``; None where it is refused."""
        if request.isl + request.osl > self._most_tokens or request.isl > self._most_prompt:
            self._refused(request.arrival)
            return None
        if self._prefilling:
            return self._route(request.prefill_alone(), engines[: self._prefilling])
        return self._route(request, engines)
