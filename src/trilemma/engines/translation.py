"""A plan made for one engine, as another engine would run it: what both know is kept, the rest is left to its defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trilemma.engines import traits_of
from trilemma.engines.traits import EngineTraits
from trilemma.engines.written_options import check_options
from trilemma.errors import InputError, shorten
from trilemma.plans import EngineRef, Layout, Plan, Pool


def for_engine(plan: Plan, name: str, *, mixture: bool = False, requests: float | None = None) -> Plan:
    """``plan`` on the engine ``name``. Shares of the card mean another thing to each engine and are not carried over.

    Replicas of attention over common experts (``mixture``) stay so, whole copies become what the engine has for them.
    Some put layers on cards in turn where the plan cuts every matrix, and some need to be told how many of the ``requests`` in
    flight over all engines one takes. Raises `UnknownName` for a plan of an engine that is not known, `InputError` where an
    option of its engine holds what its flag does not take, and where it quantises while loading and the other does not.
    """
    own, other = traits_of(plan.engine.name), traits_of(name)
    check_options(plan)
    if own is other:
        return plan
    pools = tuple(_pool(pool, own, other, mixture=mixture, requests=requests) for pool in plan.pools)
    return replace(plan, engine=EngineRef(name=name), pools=pools)


def _pool(pool: Pool, own: EngineTraits, other: EngineTraits, *, mixture: bool, requests: float | None) -> Pool:
    options = replace(pool.options, extra={}, memory_fraction=None, block_size=None, cuda_graph_sizes=None)
    if options.quantization is not None and not other.quantises_on_load:
        raise InputError(
            f"the plan quantises to {shorten(options.quantization)} while loading, which {other.name} does not; plan for it"
            f" with --engine {other.name}"
        )
    layout, replicas = pool.layout, pool.replicas
    shared = int(layout.dp) > 1 and mixture and _shares_experts(pool, own)
    if int(layout.dp) > 1 and not shared and (mixture or other.in_turn):
        replicas, layout = replicas * int(layout.dp), replace(layout, dp=1)
    if other.in_turn:
        layout = Layout(pp=int(layout.gpus))
        options = replace(options, max_batched_tokens=None, chunked_prefill=None)
    if other.cache_in_slots:
        options = replace(options, max_seqs=_slots(options.max_seqs, requests, replicas))
    elif shared and other.attends_alone_by is not None:
        options = replace(options, extra={other.attends_alone_by: True})
    return replace(pool, layout=layout, replicas=replicas, options=options)


def _shares_experts(pool: Pool, engine: EngineTraits) -> bool:
    """Whether replicas of a mixture hold its experts in common, as the plan's own engine runs them."""
    switch = engine.attends_alone_by
    return switch is None or int(pool.layout.ep) > 1 or bool(pool.options.extra.get(switch))


def _slots(most: Any, requests: float | None, engines: int) -> int | None:
    """Requests that one engine answers at once: its cache is divided by them, so no more than come."""
    if requests is None:
        return most if most is None else int(most)
    asked = max(-(-int(requests) // engines), 1)
    return asked if most is None else min(asked, int(most))
