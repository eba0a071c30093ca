"""One row of a search's table as a plan with its full estimate, or in brief."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trilemma.estimate.estimate import Estimate
from trilemma.estimate.serving import estimate
from trilemma.plans import Layout, Plan, Pool
from trilemma.plans.words import plan_words
from trilemma.search.precisions import WeightPrecision
from trilemma.search.question import DEGREES, SearchQuestion, options_for
from trilemma.search.table import PlanTable
from trilemma.workloads import Serving


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One plan of a result: what runs, which checkpoint it needs, and its full estimate. ``workload`` has its own
    load, ``requests`` are in flight over all its ``gpus``, ``kv_format`` is the cache format in force."""

    plan: Plan
    precision: WeightPrecision
    kv_format: str
    workload: Serving
    estimate: Estimate
    requests: int
    gpus: int
    row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontPoint:
    """One plan of the Pareto front in a line: tokens a second for each GPU and for each reader."""

    layout: str
    precision: str
    kv_format: str
    requests: int
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float


def pools_of(table: PlanTable, row: int) -> tuple[tuple[int, ...], int, tuple[int, ...], int]:
    """(degrees, engines) of the pool that serves or decodes, then of the prefill pool."""

    def degrees(layout: Layout) -> tuple[int, ...]:
        return tuple(int(np.asarray(getattr(layout, name))[row]) for name in DEGREES)

    return (
        degrees(table.layout), int(table.replicas[row]), degrees(table.prefill), int(table.prefill_replicas[row])
    )  # fmt: skip


def plan_of(table: PlanTable, row: int, question: SearchQuestion) -> Plan:
    choice = table.choices[table.choice[row]]
    options = options_for(
        choice, context=question.workload.longest_request or 0, fixed=question.fixed, engine=question.engine.name
    )
    degrees, engines, prefill_degrees, prefill_engines = pools_of(table, row)
    layout = Layout(**dict(zip(DEGREES, degrees, strict=True)))
    bounded = replace(options, max_seqs=int(table.limit[row]) or options.max_seqs)
    if not prefill_engines:
        return Plan(engine=question.engine, pools=(Pool(layout=layout, options=bounded, replicas=engines),))
    prefill = Layout(**dict(zip(DEGREES, prefill_degrees, strict=True)))
    pools = (
        Pool(role="prefill", layout=prefill, options=options, replicas=prefill_engines),
        Pool(role="decode", layout=layout, options=bounded, replicas=engines),
    )
    return Plan(engine=question.engine, pools=pools)


def point_of(table: PlanTable, row: int, question: SearchQuestion) -> FrontPoint:
    return FrontPoint(
        layout=plan_words(plan_of(table, row, question)),
        precision=table.choices[table.choice[row]].precision.name,
        kv_format=table.kv_formats[table.choice[row]],
        requests=round(float(table.requests[row])),
        tokens_per_s_per_gpu=float(table.per_gpu[row]),
        tokens_per_s_per_user=float(table.per_user[row]),
    )


def found_of(table: PlanTable, row: int, question: SearchQuestion) -> Found:
    """The full estimate of one row, made by the same functions that made the row."""
    choice = table.choices[table.choice[row]]
    plan = plan_of(table, row, question)
    requests, gpus = round(float(table.requests[row])), int(table.gpus[row])
    load = question.workload if question.workload.rate is not None else replace(question.workload, concurrency=requests)
    asked = choice.precision.asked(
        cluster=replace(question.cluster, gpus=gpus) if question.free else question.cluster,
        workload=load,
        plan=plan,
        terms=question.terms,
    )
    return Found(
        plan=plan,
        precision=choice.precision,
        kv_format=table.kv_formats[table.choice[row]],
        workload=load,
        estimate=estimate(asked),
        requests=requests,
        gpus=gpus,
        row=row,
    )
