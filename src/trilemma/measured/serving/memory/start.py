"""The engine asked: its start-up for a question, the same given what a row states, and the stage that it reaches."""

from __future__ import annotations

from dataclasses import replace

from trilemma.engines.base import KvPool, StartUp
from trilemma.estimate.measured import given_lines, sized_pool
from trilemma.measured.serving.memory.question import StartQuestion


def start_of(question: StartQuestion, *, kv_cache_bytes: int | None = None) -> StartUp:
    """What the engine does with the card; ``kv_cache_bytes`` fixes the pool instead of sizing it. Raises `InputError`."""
    from trilemma import engines

    options = question.options
    if kv_cache_bytes is not None:
        options = replace(options, kv_cache_bytes=kv_cache_bytes)
    return engines.get(question.engine).start_up(
        model=question.model,
        accelerator=question.accelerator,
        layout=question.layout,
        options=options,
        draft=question.draft,
        version=question.version,
        capacity_bytes=question.capacity_bytes,
        date=question.date,
        changed=question.changed,
    )


def given_pool(question: StartQuestion, pool: KvPool, n_bytes: float) -> KvPool:
    """The pool that ``n_bytes`` per GPU make; without any bytes there are no blocks."""
    return sized_pool(pool, n_bytes, lambda size: start_of(question, kv_cache_bytes=size).pool)


def replace_weights(start: StartUp, question: StartQuestion, weights_bytes: float) -> StartUp:
    """``start`` with the weights that the engine printed; what we said too much is given back to the pool."""
    return given_lines(
        start,
        {"weights_bytes": weights_bytes},
        pool_of=lambda size: start_of(question, kv_cache_bytes=size).pool,
    )


def stage_of(start: StartUp) -> tuple[str, float]:
    """(likeliest stage, probability of "ok") of a start-up."""
    from trilemma.engines.verdict import likeliest, stage_probabilities

    return str(likeliest(start)[0]), float(stage_probabilities(start)["ok"])
