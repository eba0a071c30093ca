"""The book of a simulation: every request that ended, refused or gave up, in figures that do not grow with their number."""

from __future__ import annotations

from collections.abc import Callable

from trilemma.simulation.serving.samples import Samples
from trilemma.simulation.serving.traffic import Arrival, ServedRequest

#: Tenants that are told apart.
_MOST_TENANTS = 1000


class RequestBook:
    """Counts and samples of the requests of one run; ``each`` is told of every one that was answered.

    ``goals_s`` are the targets of time to first token and of time a token (infinite: none).
    """

    def __init__(
        self, *, goals_s: tuple[float, float] = (float("inf"), float("inf")),
        each: Callable[[ServedRequest], None] | None = None,
    ) -> None:  # fmt: skip
        self.ttft, self.tpot, self.e2e, self.queue = (Samples() for _ in range(4))
        self.arrived = self.completed = self.rejected = self.abandoned = self.good = 0
        self.input_tokens = self.output_tokens = self.preempted = 0
        self.ended_s = 0.0
        self.tenants: dict[str, tuple[list[int], Samples]] = {}
        self._ttft_goal_s, self._tpot_goal_s = goals_s
        self._each = each

    def done(self, request: ServedRequest, now_s: float) -> None:
        self.ended_s = max(self.ended_s, now_s)
        if request.finish_s < 0:
            self.abandoned += 1
            return
        arrival = request.arrival
        first_s = request.first_s - arrival.arrival_s
        token_s = (request.finish_s - request.first_s) / (request.osl - 1) if request.osl > 1 else 0.0
        self.completed += 1
        self.input_tokens += request.isl
        self.output_tokens += request.osl
        self.ttft.add(first_s)
        self.queue.add(max(request.entered_s - arrival.arrival_s, 0.0))
        self.e2e.add(request.finish_s - arrival.arrival_s)
        if request.osl > 1:
            self.tpot.add(token_s)
        if first_s <= self._ttft_goal_s and token_s <= self._tpot_goal_s:
            self.good += 1
        if arrival.tenant is not None:
            self._of_tenant(arrival.tenant, request, first_s)
        if self._each is not None:
            self._each(request)

    def refused(self, arrival: Arrival) -> None:  # noqa: ARG002 - counted alike
        self.rejected += 1

    def _of_tenant(self, tenant: str, request: ServedRequest, first_s: float) -> None:
        if tenant not in self.tenants and len(self.tenants) >= _MOST_TENANTS:
            return
        counts, ttft = self.tenants.setdefault(tenant, ([0, 0], Samples()))
        counts[0] += 1
        counts[1] += request.osl
        ttft.add(first_s)
