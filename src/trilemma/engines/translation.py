"""A plan made for one engine, as another engine would run it: what both know is kept, the rest is left to its defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trilemma.engines import canonical, get
from trilemma.errors import InputError, shorten
from trilemma.plans import EngineRef, Layout, Plan, Pool

#: Switches by which replicas attend alone over experts that they have in common; vLLM's replicas of a mixture always do.
_ATTEND_ALONE = {"sglang": "enable-dp-attention", "tensorrt-llm": "enable_attention_dp"}
#: Engines that put layers on cards in turn and run one copy of the model in a process.
_LAYERS_IN_TURN = ("llama.cpp", "transformers-serve")


def for_engine(plan: Plan, name: str, *, mixture: bool = False, requests: float | None = None) -> Plan:
    """``plan`` on the engine ``name``. Shares of the card mean another thing to each engine and are not carried over.

    Replicas of attention over common experts (``mixture``) stay so, whole copies become what the engine has for them.
    llama.cpp and Transformers put layers on cards in turn where the plan cuts every matrix, and need to be told how many of
    the ``requests`` in flight over all engines one takes. Raises `UnknownName` for a plan of an engine that is not known,
    `InputError` where it quantises while loading and the other engine does not.
    """
    if get(plan.engine.name) is get(name):
        return plan
    own, other = canonical(plan.engine.name), canonical(name)
    pools = tuple(_pool(pool, own, other, mixture=mixture, requests=requests) for pool in plan.pools)
    return replace(plan, engine=EngineRef(name=name), pools=pools)


def _pool(pool: Pool, own: str, other: str, *, mixture: bool, requests: float | None) -> Pool:
    options = replace(pool.options, extra={}, memory_fraction=None, block_size=None, cuda_graph_sizes=None)
    if options.quantization is not None and other not in ("vllm", "sglang"):
        raise InputError(
            f"the plan quantises to {shorten(options.quantization)} while loading, which {other} does not; plan for it with"
            f" --engine {other}"
        )
    layout, replicas = pool.layout, pool.replicas
    shared = int(layout.dp) > 1 and mixture and _shares_experts(pool, own)
    if int(layout.dp) > 1 and not shared and (mixture or other in _LAYERS_IN_TURN):
        replicas, layout = replicas * int(layout.dp), replace(layout, dp=1)
    if other in _LAYERS_IN_TURN:
        layout = Layout(pp=int(layout.gpus))
        options = replace(options, max_batched_tokens=None, chunked_prefill=None)
    if other == "llama.cpp":
        options = replace(options, max_seqs=_slots(options.max_seqs, requests, replicas))
    elif shared and other in _ATTEND_ALONE:
        options = replace(options, extra={_ATTEND_ALONE[other]: True})
    return replace(pool, layout=layout, replicas=replicas, options=options)


def _shares_experts(pool: Pool, engine: str) -> bool:
    """Whether replicas of a mixture hold its experts in common, as the plan's own engine runs them."""
    switch = _ATTEND_ALONE.get(engine)
    return switch is None or int(pool.layout.ep) > 1 or bool(pool.options.extra.get(switch))


def _slots(most: Any, requests: float | None, engines: int) -> int | None:
    """Requests that one engine answers at once: its cache is divided by them, so no more than come."""
    if requests is None:
        return most if most is None else int(most)
    asked = max(-(-int(requests) // engines), 1)
    return asked if most is None else min(asked, int(most))
