"""One simulation from end to end: traffic into engines, figures out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trilemma.errors import InputError
from trilemma.simulation.serving.allocation import waste_of
from trilemma.simulation.serving.blocks import BlockPool
from trilemma.simulation.serving.deployment import SimulatedPlan
from trilemma.simulation.serving.event_loop import run
from trilemma.simulation.serving.extras_used import adapters_of_run, host_cache_of_run
from trilemma.simulation.serving.fleet import EngineFailure, EngineFleet, ScalingRule
from trilemma.simulation.serving.front import Front
from trilemma.simulation.serving.gauges import Gauges
from trilemma.simulation.serving.handover import Handover
from trilemma.simulation.serving.later import Later
from trilemma.simulation.serving.ledger import RequestBook
from trilemma.simulation.serving.metering import cost_of, energy_of
from trilemma.simulation.serving.outcome import (
    CacheUse,
    Goodput,
    LoadCurve,
    OtherRun,
    PoolUse,
    Quantiles,
    ScaledEngines,
    ServingSimulation,
    TenantShare,
    UserMetrics,
)
from trilemma.simulation.serving.replica import EngineReplica
from trilemma.simulation.serving.request_cache import RequestCache
from trilemma.simulation.serving.routers import ROUTERS
from trilemma.simulation.serving.traffic import Arrival, ServedRequest, Traffic

Done = Callable[[ServedRequest, float], None]
#: Percentiles of a distribution that is drawn.
_SHARES = (0.0, 1.0, *(float(share) for share in range(5, 95, 5)), 95.0, 97.0, 98.0, 99.0, 99.5, 99.9, 100.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationRules:
    """What is neither plan nor traffic: the ``router`` before several engines, how long clients wait, and their targets."""

    router: str = "round-robin"
    scaling: ScalingRule | None = None
    failures: tuple[EngineFailure, ...] = ()
    timeout_s: float = float("inf")
    ttft_s: float = float("inf")
    tpot_s: float = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedRun:
    """What happened, before it is told: the book, the engines as they ended (those that ``prefill`` alone apart), and what it
    took."""

    book: RequestBook
    engines: tuple[EngineReplica, ...]
    prefill: tuple[EngineReplica, ...]
    fleet: EngineFleet
    events: int
    wall_s: float


def run_once(
    plan: SimulatedPlan, arrivals: Iterable[Arrival], rules: SimulationRules,
    each: Callable[[ServedRequest], None] | None = None,
) -> SimulatedRun:  # fmt: skip
    """Serve ``arrivals`` on ``plan``; ``each`` is told of every request that was answered."""
    if rules.router not in ROUTERS:
        raise InputError(f"`router` {rules.router!r} is not known; use {', '.join(ROUTERS)}")
    if plan.prefill is not None and (rules.scaling or rules.failures):
        raise InputError("engines that come and go are of one pool; leave out `autoscale` and `fail`, or the pools")
    book, later = RequestBook(goals_s=(rules.ttft_s, rules.tpot_s), each=each), Later()
    follow = arrivals.follow if isinstance(arrivals, Traffic) else None

    def next_of(arrival: Arrival, now_s: float) -> None:
        if follow is not None and (following := follow(arrival, now_s)) is not None:
            book.arrived += 1
            later.arrives(following)

    def done(request: ServedRequest, now_s: float) -> None:
        book.done(request, now_s)
        next_of(request.arrival, now_s)

    def refused(arrival: Arrival) -> None:
        book.refused(arrival)
        next_of(arrival, max(arrival.arrival_s, book.ended_s))

    gauges = Gauges()
    engines = _engines(plan, rules, done, refused, gauges)
    prefilling = 0 if plan.prefill is None else plan.prefill.engines
    fleet = EngineFleet(route=ROUTERS[rules.router](), scaling=rules.scaling, failures=rules.failures)
    first: tuple[EngineReplica, ...] = ()
    if plan.prefill is not None and plan.transfer is not None:
        handover = Handover(
            plan.transfer, prefilling=prefilling, route=ROUTERS["least-loaded"](), later=later, finished=done
        )
        first = tuple(
            _engine(plan.prefill, rules, partial(handover.prefilled, at), refused, Gauges()) for at in range(prefilling)
        )
    front = Front(
        fleet if rules.scaling or rules.failures else fleet.route,
        handling_s=plan.handling_s, each_s=plan.each_s, most_tokens=plan.context,
        most_prompt=min(one.longest_prompt for one in (plan, plan.prefill) if one is not None), refused=refused,
        prefilling=prefilling,
    )  # fmt: skip
    began = time.perf_counter()
    events = run(_counted(arrivals, book), front, (*first, *engines), rules.failures, later)
    fleet.close(book.ended_s)
    return SimulatedRun(
        book=book, engines=engines, prefill=first, fleet=fleet, events=events, wall_s=time.perf_counter() - began
    )


def _engines(
    plan: SimulatedPlan, rules: SimulationRules, done: Done, refused: Callable[[Arrival], None], gauges: Gauges
) -> tuple[EngineReplica, ...]:
    """The engines of a pool; the first is read over time, gaps between tokens are those of all."""
    return tuple(
        _engine(plan, rules, done, refused, gauges if not at else Gauges(shared=gauges.gaps))
        for at in range(plan.engines)
    )


def _engine(
    plan: SimulatedPlan, rules: SimulationRules, done: Done, refused: Callable[[Arrival], None], gauges: Gauges
) -> EngineReplica:
    cache = RequestCache(
        BlockPool(plan.blocks), block_size=plan.block_size, finds_prefixes=plan.rules.prefix_cache,
        host=None if plan.host is None else plan.host.made(),
    )  # fmt: skip
    return EngineReplica(
        plan.rules.made(plan.tokens), plan.times, cache, most_running=plan.most_running, done=done, refused=refused,
        gauges=gauges, timeout_s=rules.timeout_s, lag_steps=plan.lag_steps,
        adapters=None if plan.adapters is None else plan.adapters.made(),
    )  # fmt: skip


def told(
    plan: SimulatedPlan,
    done: SimulatedRun,
    *,
    inputs: Mapping[str, Any],
    goals: bool,
    bounds: Mapping[str, Any],
    first: Iterable[Arrival] = (),
    curve: LoadCurve | None = None,
    compared: OtherRun | None = None,
) -> ServingSimulation:
    """The figures of a run of ``plan``."""
    book, engines = done.book, done.engines
    gauges = engines[0].gauges
    seconds = max(book.ended_s, 1e-9)
    asked = sum(one.cache.asked_stretches for one in engines)
    hit = sum(one.cache.hit_stretches for one in engines)
    tokens = max(sum(one.cache.asked_tokens for one in engines), 1)
    token_hits = sum(one.cache.hit_tokens for one in engines) / tokens
    gpus, energy = plan.question.plan.gpus, energy_of(plan, done)
    return ServingSimulation(
        inputs=inputs,
        requests=book.arrived,
        completed=book.completed,
        rejected=book.rejected,
        abandoned=book.abandoned,
        seconds_simulated=seconds,
        metrics=metrics_of(done),
        bounds=bounds,
        output_tokens_per_s=book.output_tokens / seconds,
        input_tokens_per_s=book.input_tokens / seconds,
        requests_per_s=book.completed / seconds,
        tokens_per_s_per_gpu=book.output_tokens / seconds / gpus,
        preemptions=sum(one.preemptions for one in engines),
        mean_running=sum(one.busy.running_s for one in engines) / seconds,
        engines=len(engines),
        scaling=_scaled(plan, done.fleet, seconds) if done.fleet.scaling is not None else None,
        goodput=goodput_of(done) if goals else None,
        cache=CacheUse(
            block_hit_rate=hit / asked if asked else token_hits,
            token_hit_rate=token_hits,
            peak_share=max(one.pool.most_held / one.pool.total for one in engines),
            blocks=plan.blocks,
            block_size=plan.block_size,
            unfilled_share=plan_unfilled(engines),
        ),
        host_cache=host_cache_of_run(plan, done),
        adapters=adapters_of_run(plan, done),
        allocation=waste_of(first, context=plan.context),
        cost=cost_of(plan, done, energy),
        energy=energy,
        pools=_pools(done),
        compared=compared,
        tenants=tuple(
            TenantShare(
                tenant=name, requests=counts[0], output_tokens=counts[1], ttft_ms=Quantiles.of_seconds(ttft.summary())
            )
            for name, (counts, ttft) in sorted(book.tenants.items())
        ),
        load_curve=curve,
        cdf_ms=distributions_of(done),
        series=tuple((at, running, waiting, held / plan.blocks) for at, running, waiting, held in gauges.readings),
        wall_s=done.wall_s,
        events=done.events,
        warnings=plan.warnings,
    )


def metrics_of(done: SimulatedRun) -> UserMetrics:
    """What the users of a run saw."""
    book = done.book
    return UserMetrics(
        ttft_ms=Quantiles.of_seconds(book.ttft.summary()),
        queue_ms=Quantiles.of_seconds(book.queue.summary()),
        tpot_ms=Quantiles.of_seconds(book.tpot.summary()),
        itl_ms=Quantiles.of_seconds(done.engines[0].gauges.gaps.summary()),
        e2e_ms=Quantiles.of_seconds(book.e2e.summary()),
    )


def distributions_of(done: SimulatedRun) -> dict[str, Any]:
    """(share of requests, milliseconds) of each figure, where percentiles say what a curve needs."""
    samples = {
        "ttft_ms": done.book.ttft, "tpot_ms": done.book.tpot, "itl_ms": done.engines[0].gauges.gaps, "e2e_ms": done.book.e2e,
    }  # fmt: skip
    wanted = {str(share): share for share in _SHARES}
    return {
        name: [[float(share) / 100, round(seconds * 1e3, 3)] for share, seconds in one.percentiles(wanted).items()]
        for name, one in samples.items()
        if one.count
    }


def plan_unfilled(engines: Iterable[EngineReplica]) -> float:
    """The share of the blocks that requests held at their end which had no token in it."""
    held = sum(one.cache.held_tokens for one in engines)
    return sum(one.cache.unfilled_tokens for one in engines) / held if held else 0.0


def _scaled(plan: SimulatedPlan, fleet: EngineFleet, seconds: float) -> ScaledEngines:
    mean = fleet.engine_seconds / seconds
    return ScaledEngines(most=fleet.most_up, mean=mean, changes=tuple(fleet.changes), gpu_share=mean / plan.engines)


def goodput_of(done: SimulatedRun) -> Goodput:
    book = done.book
    return Goodput(share=book.good / max(book.completed, 1), requests_per_s=book.good / max(book.ended_s, 1e-9))


def _pools(done: SimulatedRun) -> tuple[PoolUse, ...]:
    """Both pools where there are two."""
    seconds = max(done.book.ended_s, 1e-9)
    return tuple(
        PoolUse(
            pool=name,
            engines=len(engines),
            mean_running=sum(one.busy.running_s for one in engines) / seconds,
            peak_share=max(one.pool.most_held / one.pool.total for one in engines),
            preemptions=sum(one.preemptions for one in engines),
        )
        for name, engines in (("prefill", done.prefill), ("decode", done.engines))
        if done.prefill
    )


def _counted(arrivals: Iterable[Arrival], book: RequestBook) -> Iterator[Arrival]:
    for arrival in arrivals:
        book.arrived += 1
        yield arrival
