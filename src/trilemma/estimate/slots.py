"""Into how many slots a cache is cut that nobody said how to cut, where the engine gives each request a slot of its own."""

from __future__ import annotations

from dataclasses import replace

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.estimate.pool_start import start_pool
from trilemma.estimate.speed import plan_speed
from trilemma.models.architecture import Model
from trilemma.plans import Pool
from trilemma.question import ServingQuestion


def with_slots(pool: Pool, question: ServingQuestion) -> Pool:
    """``pool`` with a slot for each of the requests that the workload has at once, or half as often as it takes until no layer
    leaves the cards for slots; where some lie on the host anyway, as many as yield the most tokens.

    Slots take room on the cards from layers, which are then read at the host's rate; but more slots share each reading of
    what lies there. A little more memory may therefore mean fewer slots, those that the cards hold beside all layers.
    """
    load, name = question.workload, question.plan.engine.name
    cuts = engines.traits_of(name).cache_in_slots and pool.options.max_seqs is None and load.shapes_plan
    slots = -(-int(load.concurrency or 1) // (pool.replicas * int(pool.layout.dp))) if cuts else 1
    if slots <= 1:
        return pool
    alone = start_pool(pool, question)
    all_fit = _left_on_host(alone, question.model) <= 0
    best, most = pool, 0.0 if all_fit else _tokens_per_s(alone, pool, question)
    while slots > 1:
        tried = replace(pool, options=replace(pool.options, max_seqs=slots))
        start = start_pool(tried, question)
        if engines.get(name).likeliest_stage(start)[0] == "ok":
            if _left_on_host(start, question.model) <= 0:
                return tried  # fewer slots read the same for fewer requests
            tokens = 0.0 if all_fit else _tokens_per_s(start, tried, question)
            best, most = (tried, tokens) if tokens > most else (best, most)
        slots //= 2
    return best


def _tokens_per_s(start: StartUp, pool: Pool, question: ServingQuestion) -> float:
    """What ``question`` yields of ``pool``, by the estimate itself."""
    return plan_speed(start, replace(question, plan=replace(question.plan, pools=(pool,)))).output_tokens_per_s


def _left_on_host(start: StartUp, model: Model) -> float:
    """Bytes beside the embedding, which is always there and of which a step reads a few rows."""
    return max(float(start.host_bytes) - sum(tensor.bytes for tensor in model.of_part("embedding")), 0.0)
