"""One plan of two pools, prefill and decode: both start-ups, the speed of both together, and which of them limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from trilemma import engines
from trilemma.engines.base import Stage, StartUp
from trilemma.engines.traits import those
from trilemma.errors import InputError, PlanWarning
from trilemma.estimate.estimate import Bottleneck, Estimate, Resource, Verdict
from trilemma.estimate.number_formats import as_computed
from trilemma.estimate.offer import PoolCommand
from trilemma.estimate.operators import operators
from trilemma.estimate.pool_start import start_pool
from trilemma.estimate.power import Doing
from trilemma.estimate.reasons import reason
from trilemma.estimate.sections import assembled, cache_of, memory_of, printed_lines
from trilemma.estimate.serving_load import (
    ASSUMED_CONCURRENCY,
    ASSUMED_ISL,
    ASSUMED_OSL,
    admission_of,
    overload_warnings,
    stated,
)
from trilemma.estimate.speed import Speed, source_warnings, speed_figures, with_most
from trilemma.estimate.start_up_time import slower_of, start_up_time
from trilemma.estimate.timed_plan import speculation_of
from trilemma.formats import catalogue
from trilemma.hardware.cluster import Cluster
from trilemma.plans import Plan, Pool
from trilemma.quantities import counted, show_count
from trilemma.question import ServingQuestion
from trilemma.timing import Machine, model_work
from trilemma.timing.eras import works_ahead
from trilemma.timing.intervals import OF_POOLS, pools_spread
from trilemma.timing.pools import Pools, PoolsSpeed
from trilemma.timing.pools_capped import pools_under_cap
from trilemma.timing.power import pass_activity, serving_activity
from trilemma.timing.serving_step import MOST_REQUESTS
from trilemma.workloads import Serving

_NOTHING_TO_DECODE = "`osl` 1 leaves a decode pool nothing to do; use one pool, or give a longer `osl`"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Started:
    pool: Pool
    start: StartUp
    stage: Stage
    probability: float


def estimate_pools(question: ServingQuestion) -> Estimate:
    """What a prefill and a decode pool cost together: the ledger is that of the fuller card, the cache that of decode.

    Cards of ``cluster`` that the pools do not take stay idle and are paid for. Raises `InputError` for other roles, for an
    engine that cannot hand a cache over, for outputs of one token, and for more GPUs than there are.
    """
    plan, cluster = question.plan, question.cluster
    prefill, decode = _roles(plan)
    _check(plan, cluster, question.workload)
    engine = engines.get(plan.engine.name)
    started = []
    for pool in (prefill, decode):
        start = start_pool(pool, question)
        stage, probability = engine.likeliest_stage(start)
        started.append(_Started(pool=pool, start=start, stage=stage, probability=probability))
    worst = max(started, key=lambda one: float(one.start.ledger.total()) / float(one.start.capacity_bytes))
    decoding = started[1]
    speed = None
    more: tuple[PlanWarning, ...] = ()
    if all(one.stage == "ok" for one in started):
        speed, more = _speed(decoding.start, question)
    commands = tuple(
        PoolCommand(
            pool=one.pool.role,
            replicas=one.pool.replicas,
            command=engine.line(model=question.named, plan=replace(plan, pools=(one.pool,))),
        )
        for one in started
    )
    return assembled(
        decoding.start,
        question,
        verdict=_verdict(started),
        memory=memory_of(worst.start),
        cache=cache_of(decoding.start, decode.layout) if decoding.start.pool.bytes_per_token_per_gpu else None,
        speed=speed,
        ranks=tuple(_rank(one) for one in started),
        warnings=(*_idle(plan, cluster), *more),
        start_up=printed_lines(decoding.start, engine),
        start_up_time=slower_of(tuple(start_up_time(one.start, question, one.pool) for one in started))
        if speed
        else None,
        commands=commands,
    )


def check_pools(question: ServingQuestion) -> None:
    """Raise `InputError` for pools of other roles than prefill and decode, and for an engine or options that do not run apart."""
    _roles(question.plan)
    _check(question.plan, question.cluster, question.workload)


def _roles(plan: Plan) -> tuple[Pool, Pool]:
    by_role = {pool.role: pool for pool in plan.pools}
    if len(plan.pools) != 2 or set(by_role) != {"prefill", "decode"}:
        roles = ", ".join(pool.role for pool in plan.pools)
        raise InputError(f"pools of {roles}: a plan of several pools has one of prefill and one of decode")
    return by_role["prefill"], by_role["decode"]


def _check(plan: Plan, cluster: Cluster, workload: Serving) -> None:
    if not engines.traits_of(plan.engine.name).disaggregates:
        raise InputError(
            f"{plan.engine.name} has no prefill and decode pools; use one pool, or {', '.join(those('disaggregates'))}"
        )
    if any(pool.options.cpu_offload_bytes for pool in plan.pools):
        raise InputError(
            "weights in the memory of the host are timed in one pool only; leave --cpu-offload-gb out of prefill and decode"
        )
    if plan.gpus > cluster.gpus:
        raise InputError(f"the pools take {counted(plan.gpus, 'GPU')}, but `gpu` names {cluster.gpus}")
    if workload.images is not None:
        raise InputError(f"`images` {workload.images}: images before pools apart are not told yet; ask for one pool")
    if workload.osl == 1:
        raise InputError(_NOTHING_TO_DECODE)


def _verdict(started: list[_Started]) -> Verdict:
    """The first failure, told of its pool; where both start, the probability that both do."""
    failing = next((one for one in started if one.stage != "ok"), None)
    if failing is not None:
        return Verdict(
            stage=failing.stage,
            probability=failing.probability,
            reason=f"{failing.pool.role}: {reason(failing.stage, failing.start)}",
        )
    prefill, decode = started
    return Verdict(
        stage="ok",
        probability=prefill.probability * decode.probability,
        reason=f"in decode {reason('ok', decode.start)}; prefill starts too",
    )


def _rank(one: _Started) -> Mapping[str, Any]:
    return {
        "pool": one.pool.role,
        "stage": 0,
        "count": int(one.pool.gpus),
        "memory": {line.name: float(line.bytes) for line in one.start.ledger},
    }


def _speed(start: StartUp, question: ServingQuestion) -> tuple[Speed, tuple[PlanWarning, ...]]:
    """Latency and throughput of both pools; ``start`` is that of decode, whose slots hold the requests."""
    model, cluster, plan = question.model, question.cluster, question.plan
    load, assumed = stated(question.workload, start)
    if load.osl == 1:
        raise InputError(_NOTHING_TO_DECODE)
    isl, osl = load.isl or ASSUMED_ISL, load.osl or ASSUMED_OSL
    prefill, decode = _roles(plan)
    model = as_computed(model, plan.engine.name, plan.pools[0].options)
    work = model_work(model, cluster.accelerator)
    traits = engines.traits_of(plan.engine.name)
    machine, prefilling = (
        Machine.serving(
            cluster, work=work, engine=engines.canonical(plan.engine.name), version=plan.engine.version,
            terms=question.terms, routes_tokens=traits.routes_tokens(pool.options.extra),
            ahead=works_ahead(engines.canonical(plan.engine.name), plan.engine.version, pool.options.extra),
            eager=pool.options.eager, sampling=question.workload.sampling,
        )
        for pool in (decode, prefill)
    )  # fmt: skip
    speculation, unstated = speculation_of(replace(plan, pools=(decode,)))
    pools = Pools(
        work=work,
        machine=machine,
        prefill_machine=prefilling,
        prefill=prefill.layout,
        decode=decode.layout,
        prefill_workers=prefill.replicas,
        decode_workers=decode.replicas,
        isl=isl,
        osl=osl,
        kv_format=catalogue.get(start.kv_format),
        slots=admission_of(start, plan.engine.name, isl=isl, osl=osl).holds,
        prefix_hit=load.prefix_hit,
        speculation=speculation,
    )
    concurrency = load.concurrency or ASSUMED_CONCURRENCY if load.rate is None else None
    pools, *clocks = pools_under_cap(pools, concurrency=concurrency, rate=load.rate)
    found = pools.speed(concurrency=concurrency, rate=load.rate)
    serving = found.serving
    lines = operators(serving, pools.at_datasheet().at_batch(serving.running), machine)
    able = None
    if load.rate is not None:
        able = pools.speed(concurrency=MOST_REQUESTS).serving.output_tokens_per_s
    figures = speed_figures(
        serving, pools_spread(machine, model), lines, able_per_s=able, arriving_per_s=(load.rate or np.inf) * osl
    )
    if able is not None:
        figures = with_most(figures, able_per_s=able, osl=osl, spread=pools_spread(machine, model))
    overload = overload_warnings(figures, load)
    if overload:
        figures = replace(figures, ttft_s=None, request_s=None, ttft_lines={})
    idle = cluster.gpus / float(pools.gpus)
    figures = replace(
        figures,
        tokens_per_s_per_gpu=_over(figures.tokens_per_s_per_gpu, idle),
        mfu=_over(figures.mfu, idle),
        ranges=OF_POOLS,
    )
    return Speed(
        figures=figures,
        bottleneck=_bottleneck(found, float(pools.slots)),
        output_tokens_per_s=float(serving.output_tokens_per_s),
        warnings=(*overload, *assumed, *unstated, *source_warnings(machine)),
        doing=_doing(pools, found, machine, clocks),
    ), _handover(pools, found)


def _doing(pools: Pools, found: PoolsSpeed, machine: Machine, clocks: Sequence[float]) -> tuple[Doing, ...]:
    """Prefill works in the part of the time in which it has prompts; decode is an engine without prompts of others. ``clocks``
    are those of both."""
    serving = found.serving
    prompts = pass_activity(serving.prefill, machine, pools.work).at_rate(float(found.flow.prefill_busy))
    tokens = serving_activity(serving, machine, pools.work, pools.decode, replicas=pools.decode_workers)
    return (
        Doing(gpus=int(pools.prefill.gpus * pools.prefill_workers), activity=prompts, clock=clocks[0]),
        Doing(gpus=int(pools.decode.gpus * pools.decode_workers), activity=tokens, clock=clocks[1]),
    )


def _over(interval: Any, factor: float) -> Any:
    """A figure per GPU when idle GPUs count."""
    return interval.scaled(1.0 / factor) if interval is not None else None


def _bottleneck(found: PoolsSpeed, held: float) -> Bottleneck:
    """The pool that is nearer to what it can do, by the share of time that prefill computes and of slots that decode fills."""
    busy, full = float(found.flow.prefill_busy), float(found.flow.slots_used)
    shares = f"prefill workers are busy {busy:.0%} of the time, decode slots are {full:.0%} full"
    serving = found.serving
    if bool(serving.capacity_limited):
        return Bottleneck(
            resource="capacity",
            detail=f"decode holds {show_count(held)} such requests a replica, the rest wait; {shares}",
        )
    if busy > full:
        parts = serving.prefill.resources
        pool = "prefill"
    else:
        parts, pool = dict(serving.resources), "decode"
    resource = max(parts, key=lambda name: float(np.asarray(parts[name])))
    return Bottleneck(resource=cast(Resource, resource), detail=f"the {pool} pool limits: {shares}")


def _handover(pools: Pools, found: PoolsSpeed) -> tuple[PlanWarning, ...]:
    """Over which wire the cache travels, which is assumed, and what that takes."""
    gpus = int(pools.gpus)
    path = pools.machine.cluster.path(gpus)
    speed = path.bytes_per_s
    network = f"the network of each card ({speed.value / 1e9:g} GB/s: {speed.source})"
    wire = {"link": path.name, "pcie": "PCIe", "network": network}.get(path.kind, path.kind)
    n_bytes = float(np.asarray(pools.decode_worker(1.0).received_bytes))
    message = (
        f"the cache of a prompt, {n_bytes / 2**20:,.0f} MiB for each decode rank, is taken to travel over {wire} once the"
        f" prefill is done: {float(np.asarray(found.flow.transfer_s)) * 1e3:,.1f} ms of the time to the first token"
    )
    return (PlanWarning(code="kv-transfer", message=message),)


def _idle(plan: Plan, cluster: Cluster) -> tuple[PlanWarning, ...]:
    idle = cluster.gpus - int(plan.gpus)
    if not idle:
        return ()
    message = f"{idle} of the {counted(cluster.gpus, 'GPU')} stay idle; figures per GPU and the price count them"
    return (PlanWarning(code="idle-gpus", message=message),)
