"""Small laws of an engine's clock and queue: how many steps a time holds, and where a request stands in line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from trilemma.simulation.serving.step_times import Steps
from trilemma.simulation.serving.traffic import ServedRequest


def steps_until(times: Steps, sequences: int, context_sum: float, spent_s: float) -> int:
    """Decode steps, at least one, until that which is under way after ``spent_s`` has ended; each step is a
    little longer than the one before it."""
    steps = max(int(spent_s / times.decode_s(sequences, context_sum / sequences)), 1)
    while steps > 1 and times.run_s(sequences, context_sum, steps - 1) > spent_s:
        steps -= 1
    while times.run_s(sequences, context_sum, steps) <= spent_s:
        steps += 1
    return steps


def next_loaded_s(prefilling: Iterable[ServedRequest], now_s: float) -> float:
    """When the next of the prompts that wait for the host has back what it waits for; infinite where none waits."""
    return min((one.loaded_s for one in prefilling if one.loaded_s > now_s), default=float("inf"))


def queue_up(waiting: deque[ServedRequest], request: ServedRequest) -> None:
    """``request`` stands before those whose priority is a larger number, behind all others; who was thrown out stays first."""
    behind, mine = len(waiting), request.arrival.priority
    while behind and waiting[behind - 1].arrival.priority > mine and not waiting[behind - 1].preempted:
        behind -= 1
    waiting.insert(behind, request)
