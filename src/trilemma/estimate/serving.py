"""One serving plan in full: what the engine does with the card, whether it starts, how fast it runs and what that costs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trilemma import engines
from trilemma.engines.base import Engine, StartUp
from trilemma.engines.vendors import check_vendor
from trilemma.errors import Caution, InputError
from trilemma.estimate.estimate import Bottleneck, CacheEstimate, Estimate, MemoryEstimate, Verdict
from trilemma.estimate.layouts import check_context, check_layout
from trilemma.estimate.reasons import reason
from trilemma.estimate.speed import Speed, plan_speed
from trilemma.hardware.cluster import Cluster
from trilemma.intervals import Interval
from trilemma.models.architecture import Model
from trilemma.models.catalogue import hub_id
from trilemma.models.parameters import count
from trilemma.plans import Layout, Plan, Pool
from trilemma.plans.document import plan_to_document
from trilemma.quantities import GIB
from trilemma.workloads import Serving


def estimate(
    *,
    model: Model,
    cluster: Cluster,
    workload: Serving,
    plan: Plan,
    free_bytes: float | None = None,
    capacity_bytes: float | None = None,
    served_as: str | None = None,
) -> Estimate:
    """What ``plan`` costs for ``workload``: ledger, cache, verdict, speed, price and power, each with an interval.

    ``free_bytes`` is what other processes leave of each card, ``capacity_bytes`` replaces the card's runtime total;
    ``served_as`` is what the engine's command line names (default: the model's hub id).
    Raises `InputError` for layouts that the engine refuses and for GPUs that the layout does not use up.
    """
    pool = _with_context(plan.pool, workload)
    _check_gpus(pool.layout, cluster)
    check_layout(model, pool.layout)
    check_context(model, pool.options.context, rescaled=rescaled(pool))
    engine = engines.get(plan.engine.name)
    check_vendor(engine.name, cluster.accelerator)
    start = engine.start_up(
        model=model,
        accelerator=cluster.accelerator,
        layout=pool.layout,
        options=pool.options,
        draft=pool.draft,
        version=plan.engine.version,
        free_bytes=free_bytes,
        capacity_bytes=capacity_bytes,
    )
    return from_start_up(
        start,
        engine=engine,
        model=model,
        cluster=cluster,
        workload=workload,
        plan=replace(plan, pools=(pool,)),
        served_as=served_as,
    )


def from_start_up(
    start: StartUp,
    *,
    engine: Engine,
    model: Model,
    cluster: Cluster,
    workload: Serving,
    plan: Plan,
    served_as: str | None = None,
) -> Estimate:
    """The estimate of one plan whose start-up is known, predicted or with measured lines put in."""
    stage, probability = engine.likeliest_stage(start)
    speed = plan_speed(start, model=model, cluster=cluster, workload=workload, plan=plan) if stage == "ok" else None
    hour = cluster.accelerator.usd_per_hour.scaled(cluster.gpus) if cluster.accelerator.usd_per_hour else None
    tdp = cluster.accelerator.tdp_w
    watts = tdp.value * cluster.gpus if tdp else None
    return Estimate(
        inputs=_inputs(start, model=model, cluster=cluster, workload=workload, plan=plan),
        verdict=Verdict(stage=stage, probability=probability, reason=reason(stage, start)),
        memory=_memory(start),
        cache=_cache(start, plan.pool.layout) if start.pool.bytes_per_token_per_gpu else None,
        speed=speed.figures if speed else None,
        bottleneck=speed.bottleneck if speed else Bottleneck(resource="capacity", detail="the plan does not start"),
        usd_per_hour=hour,
        usd_per_million_tokens=_per_million_tokens(hour, speed),
        watts=watts,
        joules_per_token=watts / speed.output_tokens_per_s if watts and speed else None,
        warnings=_cautions(start, model, cluster, speed),
        extras={
            "start_up": printed_lines(start, engine),
            "command": shlex.join(engine.write(model=served_as or hub_id(model.name), plan=plan)),
        },
    )


def printed_lines(start: StartUp, engine: Engine) -> dict[str, Any]:
    """What the engine will print as it starts, in its own units, and the memory fractions with which it would start."""
    lines = start.ledger
    loaded = sum(float(line.bytes) for line in lines if line.name in ("weights", "draft_model", "vision"))
    bounds = engine.feasible_fraction(start)
    return {
        "model_loading_gib": round(loaded / GIB, 2),
        "available_kv_cache_gib": round(float(start.pool.available_bytes) / GIB, 2),
        "kv_cache_tokens": int(start.pool.tokens),
        "blocks": int(start.pool.blocks),
        "block_size": int(start.pool.block_size),
        "max_concurrency": round(float(start.pool.concurrency), 2),
        "needed_for_one_request_gib": round(float(start.pool.need_bytes) / GIB, 2),
        "max_model_len": int(start.pool.max_context),
        "memory_fraction": start.memory_fraction,
        "feasible_memory_fraction": None if bounds is None else [round(float(bound), 4) for bound in bounds],
    }


def _with_context(pool: Pool, workload: Serving) -> Pool:
    if pool.options.context is not None or workload.longest_request is None:
        return pool
    return replace(pool, options=replace(pool.options, context=workload.longest_request))


def rescaled(pool: Pool) -> bool:
    """Whether the engine is told to stretch the model's positions."""
    overrides = pool.options.extra.get("hf-overrides")
    told = overrides if isinstance(overrides, Mapping) else {}
    return "rope-scaling" in pool.options.extra or any(
        name in told for name in ("rope_scaling", "rope_parameters", "max_position_embeddings")
    )


def _check_gpus(layout: Layout, cluster: Cluster) -> None:
    if layout.gpus != cluster.gpus:
        raise InputError(
            f"--tp {layout.tp} x --pp {layout.pp} x --dp {layout.dp} takes {layout.gpus} GPUs, but --gpu names {cluster.gpus}"
        )


def _memory(start: StartUp) -> MemoryEstimate:
    total = float(start.ledger.total())
    # The pool takes what the other lines leave of the budget, so their errors move memory within the budget; only what
    # lies outside it widens the whole. Without a pool every line is as uncertain as it stands.
    outside = _half_width(start, "outside")
    spread = outside if float(start.pool.available_bytes) > 0 else float(np.hypot(outside, float(start.spread_bytes)))
    return MemoryEstimate(
        capacity_bytes=int(start.capacity_bytes),
        usable_bytes=int(start.budget_bytes),
        total=Interval(value=total, low=max(total - spread, 0.0), high=total + spread),
        ledger=start.ledger,
    )


def _half_width(start: StartUp, budget: str) -> float:
    widths = [(float(line.high) - float(line.low)) / 2 for line in start.ledger if line.budget == budget]
    return float(np.sqrt(sum(width * width for width in widths)))


def _cache(start: StartUp, layout: Layout) -> CacheEstimate:
    """Of one replica, as the engine prints it; replicas under data parallelism have a pool each."""
    pool = start.pool
    available, rate = float(pool.available_bytes), float(pool.bytes_per_token_per_gpu)
    tokens, spread = float(pool.tokens), float(start.spread_bytes)
    relative = spread / available if available > 0 else 0.0
    return CacheEstimate(
        bytes_per_token=rate * float(layout.tp) * float(layout.pp),
        bytes_per_token_per_gpu=rate,
        available_bytes_per_gpu=Interval(value=available, low=available - spread, high=available + spread),
        tokens=Interval(value=tokens, low=max(tokens * (1 - relative), 0.0), high=tokens * (1 + relative)),
        blocks=int(pool.blocks),
        max_context=int(pool.max_context),
        max_concurrency=float(pool.concurrency),
    )


def _per_million_tokens(hour: Interval | None, speed: Speed | None) -> Interval | None:
    """Dollars per million output tokens: the price range over the throughput range."""
    if hour is None or speed is None or speed.figures.output_tokens_per_s is None:
        return None
    rate = speed.figures.output_tokens_per_s
    seconds = 1e6 / 3600.0
    return Interval(
        value=hour.value * seconds / rate.value, low=hour.low * seconds / rate.high, high=hour.high * seconds / rate.low
    )


def _inputs(start: StartUp, *, model: Model, cluster: Cluster, workload: Serving, plan: Plan) -> Mapping[str, Any]:
    accelerator, layout = cluster.accelerator, plan.pool.layout
    counted = count(model)
    return {
        "model": {
            "name": model.name,
            "family": model.family,
            "parameters": counted.total,
            "active_parameters": counted.active,
            "quantization": model.quantization.method if model.quantization else None,
            "source": model.source,
        },
        "cluster": {
            "accelerator": {"id": accelerator.id, "name": accelerator.name},
            "gpus": cluster.gpus,
            "gpus_per_node": cluster.gpus_per_node,
        },
        "workload": {
            name: getattr(workload, name)
            for name in ("isl", "osl", "concurrency", "rate", "context", "prefix_hit", "ttft_ms", "tpot_ms")
            if getattr(workload, name) is not None
        },
        "plan": {**plan_to_document(plan), "summary": summary(layout), "context": start.context},
        "engine": {"name": plan.engine.name, "version": start.version},
    }


def summary(layout: Layout) -> str:
    """A layout in one word: ``TP8``, ``TP4 PP2``, ``DP8 EP8``."""
    degrees = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep", "cp", "dcp")}
    return " ".join(f"{name.upper()}{degree}" for name, degree in degrees.items() if degree > 1) or "one GPU"


def _cautions(start: StartUp, model: Model, cluster: Cluster, speed: Speed | None) -> tuple[Caution, ...]:
    found = [*start.cautions]
    found += [Caution(code="model-assumption", message=text) for text in model.assumptions]
    if model.unknown_fields:
        names = ", ".join(model.unknown_fields[:8])
        found.append(
            Caution(code="unknown-fields", message=f"fields of the model's configuration not understood: {names}")
        )
    price = cluster.accelerator.usd_per_hour
    if price is None:
        found.append(Caution(code="no-price", message=f"no public price is known for {cluster.accelerator.id}"))
    if speed:
        found += speed.cautions
    return tuple(dict.fromkeys(found))
