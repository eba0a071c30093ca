"""One serving plan in full: what the engine does with the card, whether it starts, how fast it runs and what that costs."""

from __future__ import annotations

import shlex
from dataclasses import replace

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.engine import Engine
from trilemma.errors import InputError
from trilemma.estimate.disaggregated import estimate_pools
from trilemma.estimate.estimate import Estimate, Verdict
from trilemma.estimate.pool_start import start_pool, with_context
from trilemma.estimate.reasons import reason
from trilemma.estimate.sections import assembled, cache_of, memory_of, printed_lines
from trilemma.estimate.speed import Speed, plan_speed
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.models.catalogue import hub_id
from trilemma.plans import Plan, Pool
from trilemma.quantities import counted
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

    A plan has one pool, of one engine or of several side by side that share the load evenly, or a prefill and a decode pool.
    ``free_bytes`` is what other processes leave of each card, ``capacity_bytes`` replaces the card's runtime total;
    ``served_as`` is what the engine's command line names (default: the model's hub id).
    Raises `InputError` for layouts that the engine refuses and for GPUs that the plan does not use up (two pools may leave
    some idle).
    """
    plan = replace(plan, pools=tuple(with_context(pool, workload) for pool in plan.pools))
    if len(plan.pools) > 1:
        return estimate_pools(
            model=model, cluster=cluster, workload=workload, plan=plan, free_bytes=free_bytes,
            capacity_bytes=capacity_bytes, served_as=served_as,
        )  # fmt: skip
    _check_gpus(plan.pool, cluster)
    start = start_pool(
        plan.pool, engine=plan.engine, model=model, cluster=cluster, free_bytes=free_bytes,
        capacity_bytes=capacity_bytes,
    )  # fmt: skip
    return from_start_up(
        start,
        engine=engines.get(plan.engine.name),
        model=model,
        cluster=cluster,
        workload=workload,
        plan=plan,
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
    replicas = plan.pool.replicas
    load = one_of(workload, replicas)
    speed = plan_speed(start, model=model, cluster=cluster, workload=load, plan=plan) if stage == "ok" else None
    return assembled(
        start,
        verdict=Verdict(stage=stage, probability=probability, reason=reason(stage, start)),
        memory=memory_of(start),
        cache=cache_of(start, plan.pool.layout) if start.pool.bytes_per_token_per_gpu else None,
        speed=_of_all(speed, replicas) if speed else None,
        model=model,
        cluster=cluster,
        workload=workload,
        plan=plan,
        served_as=served_as,
        extras={
            "start_up": printed_lines(start, engine),
            "command": shlex.join(engine.write(model=served_as or hub_id(model.name), plan=plan)),
        },
    )


def one_of(workload: Serving, replicas: int) -> Serving:
    """What one of ``replicas`` engines that share ``workload`` evenly has to do."""
    if replicas == 1:
        return workload
    return replace(
        workload,
        concurrency=None if workload.concurrency is None else -(-workload.concurrency // replicas),
        rate=None if workload.rate is None else workload.rate / replicas,
    )


def _of_all(speed: Speed, replicas: int) -> Speed:
    """The figures of ``replicas`` engines from those of one: latencies and rates per GPU are the same."""
    output = speed.figures.output_tokens_per_s
    total = output.scaled(replicas) if output is not None else None
    return replace(
        speed,
        figures=replace(speed.figures, output_tokens_per_s=total),
        output_tokens_per_s=speed.output_tokens_per_s * replicas,
    )


def _check_gpus(pool: Pool, cluster: Cluster) -> None:
    layout = pool.layout
    if pool.gpus != cluster.gpus:
        times = f"{counted(pool.replicas, 'replica')} of " if pool.replicas > 1 else ""
        raise InputError(
            f"{times}--tp {layout.tp} x --pp {layout.pp} x --dp {layout.dp} takes {counted(pool.gpus, 'GPU')},"
            f" but --gpu names {cluster.gpus}"
        )
