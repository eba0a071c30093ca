"""What is read off an engine while it runs: gaps between tokens, and its queue, batch and cache over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trilemma.simulation.serving.samples import Samples

if TYPE_CHECKING:
    from trilemma.simulation.serving.replica import EngineReplica

#: Readings that are kept of a run; when twice as many have come every other one goes.
_KEPT = 512


class Gauges:
    """``gaps`` seconds between two tokens of a request, with those of other engines where they are ``shared``; ``readings`` of
    (seconds, running, waiting, blocks held)."""

    __slots__ = ("_next_s", "_spacing_s", "gaps", "readings")

    def __init__(self, shared: Samples | None = None) -> None:
        self.gaps = Samples(binned=True) if shared is None else shared
        self.readings: list[tuple[float, int, int, int]] = []
        self._next_s, self._spacing_s = 0.0, 0.0

    def reading(self, now_s: float, engine: EngineReplica) -> None:
        if now_s < self._next_s:
            return
        self.readings.append((now_s, len(engine.running), len(engine.waiting), engine.pool.held))
        self._next_s = now_s + self._spacing_s
        if len(self.readings) >= 2 * _KEPT:
            span_s = self.readings[-1][0] - self.readings[0][0]
            self.readings = self.readings[::2]
            self._spacing_s = max(2 * self._spacing_s, span_s / (2 * _KEPT))
            self._next_s = now_s + self._spacing_s
