"""From a pool that prefills to one that decodes: the cache of each prompt travels, then its request decodes there."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trilemma.estimate.timed_plan import TimedPlan
from trilemma.simulation.serving.front import RoutingRule
from trilemma.simulation.serving.later import Later
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.traffic import ServedRequest
from trilemma.timing.disaggregation import prompt_cache_bytes, transfer_s

#: Lengths at which a transfer is asked of timing, each so many times the one before; between them it is read off a line.
_STRIDE = 2.0**0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferTimes:
    """Seconds in which the cache of a prompt of so many tokens is handed over, along a line between lengths that were asked."""

    lengths: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, prefill: TimedPlan, decode: TimedPlan, *, gpus: int, longest: int) -> TransferTimes:
        """Between two pools that span ``gpus`` cards; each engine's attention replicas send and receive for themselves."""
        lengths = _STRIDE ** np.arange(math.ceil(math.log(max(longest, 2), _STRIDE)) + 1)
        received = prompt_cache_bytes(decode.work, decode.layout, tokens=lengths, kv_format=decode.kv_format)
        ranks = [np.asarray(one.layout.tp) * np.asarray(one.layout.pp) for one in (prefill, decode)]
        seconds = transfer_s(ranks[0], ranks[1], received, machine=decode.machine, gpus=gpus)
        return cls(lengths=tuple(lengths.tolist()), seconds=tuple(np.broadcast_to(seconds, lengths.shape).tolist()))

    def of_prompt(self, tokens: int) -> float:
        at = min(max(bisect_left(self.lengths, tokens), 1), len(self.lengths) - 1)
        low, high = self.lengths[at - 1], self.lengths[at]
        share = min((tokens - low) / (high - low), 1.0)
        return self.seconds[at - 1] + (self.seconds[at] - self.seconds[at - 1]) * share

    def scaled(self, factor: float) -> TransferTimes:
        return TransferTimes(lengths=self.lengths, seconds=tuple(one * factor for one in self.seconds))


class Handover:
    """Sends what ``prefilling`` engines have prefilled to the engines after them, by ``route``; ``finished`` is told of requests
    that end in prefill.

    A prefill engine sends one prompt after another, and begins when a prompt is computed.
    """

    def __init__(
        self, times: TransferTimes, *, prefilling: int, route: RoutingRule, later: Later,
        finished: Callable[[ServedRequest, float], None],
    ) -> None:  # fmt: skip
        self._times, self._prefilling, self._route, self._later = times, prefilling, route, later
        self._finished = finished
        self._free_s = [0.0] * prefilling
        self.sent_s = 0.0

    def prefilled(self, at: int, request: ServedRequest, now_s: float) -> None:
        """``request`` has left prefill engine ``at``."""
        if request.finish_s < 0 or request.arrival.osl == 1:
            self._finished(request, now_s)
            return
        took_s = self._times.of_prompt(request.isl)
        self._free_s[at] = request.ready_s = max(now_s, self._free_s[at]) + took_s
        self.sent_s += took_s
        request.hand_over()
        self._later.joins(request, self.choose)

    def choose(self, request: ServedRequest, engines: Sequence[EngineReplica]) -> int:
        return self._prefilling + self._route(request, engines[self._prefilling :])
