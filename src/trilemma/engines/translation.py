"""A plan made for one engine, as another engine would run it: what both know is kept, the rest is left to its defaults."""

from __future__ import annotations

from dataclasses import replace

from trilemma.engines import canonical, get
from trilemma.plans import EngineRef, Layout, Plan, Pool


def for_engine(plan: Plan, name: str) -> Plan:
    """``plan`` on the engine ``name``. Shares of the card mean another thing to each engine and are not carried over.

    llama.cpp and Transformers put layers on cards in turn where the plan cuts every matrix. Raises `UnknownName` for a plan
    of an engine that is not known.
    """
    if get(plan.engine.name) is get(name):
        return plan
    return replace(plan, engine=EngineRef(name=name), pools=tuple(_pool(pool, canonical(name)) for pool in plan.pools))


def _pool(pool: Pool, name: str) -> Pool:
    options = replace(pool.options, extra={}, memory_fraction=None, block_size=None, cuda_graph_sizes=None)
    if name in ("llama.cpp", "transformers-serve"):
        cards = int(pool.layout.tp) * int(pool.layout.pp)
        options = replace(options, max_batched_tokens=None, quantization=None, chunked_prefill=None)
        return replace(pool, layout=Layout(pp=cards, dp=pool.layout.dp), options=options)
    return replace(pool, options=options)
