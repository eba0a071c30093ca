"""Engines for tests: real policies and caches, step times that are known exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trilemma.simulation.serving.blocks import BlockPool
from trilemma.simulation.serving.event_loop import run
from trilemma.simulation.serving.front import Front
from trilemma.simulation.serving.gauges import Gauges
from trilemma.simulation.serving.ledger import RequestBook
from trilemma.simulation.serving.policies.token_budget import TokenBudget
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.request_cache import RequestCache
from trilemma.simulation.serving.routers import InTurn
from trilemma.simulation.serving.traffic import Arrival, ServedRequest


class LinearTimes:
    """A step takes ``step_s``, ``token_s`` for each token that decodes, and ``prompt_s`` for each that is prefilled."""

    def __init__(
        self, *, step_s: float = 0.01, token_s: float = 0.0, prompt_s: float = 0.0, context_s: float = 0.0
    ) -> None:
        self.step_s, self.token_s, self.prompt_s, self.context_s = step_s, token_s, prompt_s, context_s

    def decode_s(self, sequences: int, context: float) -> float:
        return self.step_s + sequences * (self.token_s + self.context_s * context)

    def run_s(self, sequences: int, context_sum: float, steps: int) -> float:
        return steps * self.decode_s(sequences, context_sum / sequences + (steps - 1) / 2)

    def mixed_s(self, sequences: int, context: float, chunks: Iterable[tuple[int, int]], ended: int) -> float:  # noqa: ARG002
        tokens = sum(new for new, _ in chunks)
        return (self.decode_s(sequences, context) if sequences else self.step_s) + tokens * self.prompt_s


def served(
    arrivals: Iterable[Arrival], *, policy: Any = None, times: Any = None, blocks: int = 10**6, block_size: int = 16,
    most_running: int = 256, engines: int = 1, route: Any = None, most_tokens: int = 10**9, finds_prefixes: bool = True,
    failures: Any = (), **more: Any,
) -> tuple[list[ServedRequest], RequestBook, list[EngineReplica]]:  # fmt: skip
    """(requests in the order in which they ended, the book, the engines) after all of ``arrivals`` were served."""
    ended: list[ServedRequest] = []
    book = RequestBook(each=ended.append)
    row = [
        EngineReplica(
            policy() if policy else TokenBudget(tokens=8192), times or LinearTimes(),
            RequestCache(BlockPool(blocks), block_size=block_size, finds_prefixes=finds_prefixes),
            most_running=most_running, done=book.done, refused=book.refused, gauges=Gauges(), **more,
        )
        for _ in range(engines)
    ]  # fmt: skip
    front = Front(
        route or InTurn(),
        handling_s=0.0,
        each_s=0.0,
        most_tokens=most_tokens,
        most_prompt=most_tokens,
        refused=book.refused,
    )
    run(arrivals, front, row, failures)
    return ended, book, row
