"""The engine asked: its start-up for a question, the same given what a row states, and the stage that it reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trilemma.engines.base import KvPool, StartUp
from trilemma.memory.ledger import Ledger, Line
from trilemma.validate.serving_memory_question import Question


def start_of(question: Question, *, kv_cache_bytes: int | None = None) -> StartUp:
    """What the engine does with the card; ``kv_cache_bytes`` fixes the pool instead of sizing it. Raises `InputError`."""
    from trilemma import engines

    options = question.options
    if kv_cache_bytes is not None:
        options = replace(options, kv_cache_bytes=kv_cache_bytes)
    dated: dict[str, Any] = {"date": question.date} if question.engine != "transformers-serve" else {}
    return engines.get(question.engine).start_up(
        model=question.model,
        accelerator=question.accelerator,
        layout=question.layout,
        options=options,
        draft=question.draft,
        version=question.version,
        capacity_bytes=question.capacity_bytes,
        **dated,
    )


def lines_bytes(start: StartUp, names: Sequence[str]) -> tuple[float, float, float]:
    """(value, low, high) of the lines ``names`` together, their half-widths added in quadrature: they err apart."""
    lines = [line for name in names if (line := start.ledger.get(name)) is not None]
    value = sum(float(line.bytes) for line in lines)
    below = math.hypot(*(float(line.bytes) - float(line.low) for line in lines)) if lines else 0.0
    above = math.hypot(*(float(line.high) - float(line.bytes) for line in lines)) if lines else 0.0
    return value, value - below, value + above


def given_pool(question: Question, pool: KvPool, n_bytes: float) -> KvPool:
    """The pool that ``n_bytes`` per GPU make; without any bytes there are no blocks."""
    if n_bytes == float(pool.available_bytes):
        return pool
    if n_bytes < 1:
        nothing = np.float64(0)
        return replace(
            pool, available_bytes=n_bytes, blocks=nothing, tokens=nothing, concurrency=nothing, max_context=0
        )
    return start_of(question, kv_cache_bytes=int(n_bytes)).pool


def replace_weights(start: StartUp, question: Question, weights_bytes: float, names: Sequence[str]) -> StartUp:
    """``start`` with the lines ``names`` (the first of them standing for all) at the bytes that the engine printed.

    What we said too much of weights is given back to the pool; the pool's interval loses the share that was ours.
    """
    ours, low, high = lines_bytes(start, names)
    pool = start.pool
    value = float(pool.available_bytes) + ours - weights_bytes
    below = _without(float(pool.available_bytes) - float(pool.available_low_bytes), high - ours)
    above = _without(float(pool.available_high_bytes) - float(pool.available_bytes), ours - low)
    counted = given_pool(question, pool, value)
    told = replace(
        counted, available_bytes=value, available_low_bytes=value - below, available_high_bytes=value + above
    )
    return replace(
        start,
        pool=told,
        ledger=_with_weights(start.ledger, weights_bytes, value, names),
        load_peak_bytes=float(start.load_peak_bytes) - ours + weights_bytes,
        spread_bytes=(below + above) / 2,
    )


def _without(total: float, part: float) -> float:
    """The half-width left when a part that errs on its own is known exactly."""
    return math.sqrt(max(total * total - part * part, 0.0))


def _with_weights(ledger: Ledger, weights_bytes: float, pool_bytes: float, names: Sequence[str]) -> Ledger:
    lines: list[Line] = []
    for line in ledger:
        if line.name == names[0]:
            lines.append(
                replace(
                    line, bytes=weights_bytes, low=weights_bytes, high=weights_bytes, formula="as the engine printed"
                )
            )
        elif line.name == "kv_cache":
            lines.append(replace(line, bytes=max(pool_bytes, 0.0)))
        elif line.name not in names:
            lines.append(line)
    return Ledger(lines=tuple(lines))


def stage_of(start: StartUp) -> tuple[str, float]:
    """(likeliest stage, probability of "ok") of a start-up."""
    from trilemma.engines.verdict import likeliest, stage_probabilities

    return str(likeliest(start)[0]), float(stage_probabilities(start)["ok"])
