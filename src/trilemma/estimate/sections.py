"""The parts that every serving estimate is made of, whatever the number of its pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.cards import too_new
from trilemma.engines.engine import Engine
from trilemma.errors import PlanWarning
from trilemma.estimate.doubt import doubted, of_model, of_served_class
from trilemma.estimate.estimate import (
    Bottleneck,
    CacheEstimate,
    Estimate,
    Latency,
    MemoryEstimate,
    SpeedEstimate,
    Verdict,
)
from trilemma.estimate.number_formats import format_warnings
from trilemma.estimate.offer import LatencyTarget
from trilemma.estimate.power import at_most, drawn
from trilemma.estimate.speed import Speed
from trilemma.hardware.price import price_warnings
from trilemma.intervals import Interval
from trilemma.plans import Layout
from trilemma.quantities import GIB
from trilemma.question import ServingQuestion
from trilemma.workloads import Serving


def printed_lines(start: StartUp, engine: Engine) -> dict[str, Any]:
    """What the engine will print as it starts, in its own units, and the memory fractions with which it would start."""
    lines = start.ledger
    loaded = sum(float(line.bytes) for line in lines if line.name in ("weights", "adapter", "draft_model", "vision"))
    bounds = engine.feasible_fraction(start)
    return {
        "model_loading_gib": round(loaded / GIB, 2),
        "available_kv_cache_gib": round(float(start.pool.available_bytes) / GIB, 2),
        "kv_cache_tokens": int(start.pool.tokens),
        "blocks": int(start.pool.blocks),
        "block_size": int(start.pool.block_size),
        "max_concurrency": round(float(start.pool.concurrency), 2),
        "needed_for_one_request_gib": round(max(float(start.request_bytes), float(start.pool.checked_bytes)) / GIB, 2),
        "max_model_len": int(start.pool.max_context),
        "memory_fraction": start.memory_fraction,
        "feasible_memory_fraction": None if bounds is None else [round(float(bound), 4) for bound in bounds],
    }


def memory_of(start: StartUp) -> MemoryEstimate:
    total = float(start.ledger.total())
    # The pool takes what the other lines leave of the budget, so their errors move memory within the budget; only what
    # lies outside it widens the whole. Without a pool every line is as uncertain as it stands.
    outside = _half_width(start, "outside")
    spread = outside if float(start.pool.available_bytes) > 0 else float(np.hypot(outside, float(start.spread_bytes)))
    return MemoryEstimate(
        capacity_bytes=int(start.capacity_bytes),
        usable_bytes=int(min(float(start.budget_bytes), float(start.capacity_bytes))),
        total=Interval(value=total, low=max(total - spread, 0.0), high=total + spread),
        ledger=start.ledger,
    )


def _half_width(start: StartUp, budget: str) -> float:
    widths = [(float(line.high) - float(line.low)) / 2 for line in start.ledger if line.budget == budget]
    return float(np.sqrt(sum(width * width for width in widths)))


def cache_of(start: StartUp, layout: Layout) -> CacheEstimate:
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


def per_million_tokens(hour: Interval | None, figures: SpeedEstimate | None) -> Interval | None:
    """Dollars per million output tokens: the price range over the throughput range."""
    if hour is None or figures is None or figures.output_tokens_per_s is None:
        return None
    rate = figures.output_tokens_per_s
    seconds = 1e6 / 3600.0
    return Interval(
        value=hour.value * seconds / rate.value, low=hour.low * seconds / rate.high, high=hour.high * seconds / rate.low
    )


def warnings_of(start: StartUp, question: ServingQuestion, more: Iterable[PlanWarning] = ()) -> tuple[PlanWarning, ...]:
    model, cluster = question.model, question.cluster
    found = [*start.warnings]
    found += of_model(model)
    found += of_served_class(engines.canonical(question.plan.engine.name), model, cluster.accelerator)
    found += format_warnings(question)
    if told := too_new(engines.canonical(question.plan.engine.name), start.version, cluster.accelerator):
        found.append(PlanWarning(code="no-kernels-for-card", message=told))
    found += price_warnings(cluster.every)
    return tuple(dict.fromkeys((*found, *more)))


def assembled(
    start: StartUp,
    question: ServingQuestion,
    *,
    verdict: Verdict,
    memory: MemoryEstimate,
    cache: CacheEstimate | None,
    speed: Speed | None,
    ranks: tuple[Mapping[str, Any], ...] = (),
    warnings: Iterable[PlanWarning] = (),
    **fields: Any,
) -> Estimate:
    """The answer to ``question`` from its parts, price and power of all its cards added; ``start`` is the pool
    shown, ``fields`` are further ones of it."""
    hour = question.cluster.usd_per_hour
    figures = speed.figures if speed else None
    power = (
        drawn(question.cluster, speed.doing, figures.output_tokens_per_s) if speed and figures and speed.doing else None
    )
    told = warnings_of(start, question, (*warnings, *(speed.warnings if speed else ())))
    return Estimate(
        question=question,
        version=start.version,
        context=start.context,
        uses_host=start.on_host is not None,
        verdict=doubted(verdict, told),
        memory=memory,
        cache=cache,
        speed=figures,
        bottleneck=speed.bottleneck if speed else Bottleneck(resource="capacity", detail="the plan does not start"),
        usd_per_hour=hour,
        usd_per_million_tokens=per_million_tokens(hour, figures),
        watts=power.watts if power else at_most(question.cluster),
        joules_per_token=power.joules_per_token if power else None,
        warnings=told,
        ranks=ranks,
        targets=targets_of(figures, question.workload),
        **fields,
    )


def targets_of(figures: SpeedEstimate | None, workload: Serving) -> tuple[LatencyTarget, ...]:
    """Each latency asked for with the probability that it holds, by the figure's own interval."""
    asked: tuple[tuple[Literal["ttft", "tpot"], float | None, Latency | None], ...] = (
        ("ttft", workload.ttft_ms, figures.ttft_s if figures else None),
        ("tpot", workload.tpot_ms, figures.tpot_s if figures else None),
    )
    return tuple(
        LatencyTarget(name=name, target_ms=target, probability=round(latency.interval.chance_below(target / 1e3), 3))
        for name, target, latency in asked
        if target is not None and latency
    )
