"""How fast a plan runs, with error bars and the resource that binds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np

from trilemma.engines.base import StartUp
from trilemma.errors import PlanWarning
from trilemma.estimate.estimate import Bottleneck, Latency, OperatorTime, Resource, SpeedEstimate
from trilemma.estimate.images import TOWER_RANGE, images_of
from trilemma.estimate.operators import operators
from trilemma.estimate.outside_cards import SpreadFactors, host_warnings, with_host
from trilemma.estimate.power import Doing
from trilemma.estimate.serving_load import (
    ASSUMED_CONCURRENCY,
    ASSUMED_ISL,
    ASSUMED_OSL,
    admission_of,
    overload_warnings,
    readers_of,
    stated,
)
from trilemma.estimate.timed_plan import timed_plan
from trilemma.intervals import Interval
from trilemma.models.architecture import Model
from trilemma.quantities import Numbers, counted, show_count
from trilemma.question import ServingQuestion
from trilemma.timing import Machine, ServingSpeed, concurrency_for_rate, serving_speed
from trilemma.timing.admission import Admission
from trilemma.timing.anchoring import AnchorLoad, Anchors, anchored
from trilemma.timing.intervals import OF_POINTS, profile_spread, ranges_in_words, speed_spread
from trilemma.timing.operators import ModelWork
from trilemma.timing.power import serving_activity
from trilemma.timing.serving_step import MOST_REQUESTS
from trilemma.timing.serving_terms import served_as


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Figures of speed, what binds them, what was assumed to get them, and what the cards do meanwhile."""

    figures: SpeedEstimate
    bottleneck: Bottleneck
    output_tokens_per_s: float
    warnings: tuple[PlanWarning, ...] = ()
    doing: tuple[Doing, ...] = ()


def plan_speed(start: StartUp, question: ServingQuestion) -> Speed:
    """Latency and throughput of a plan of one pool under its load; a load that is not stated is assumed and listed."""
    cluster, plan = question.cluster, question.plan
    load, warnings = stated(question.workload, start, readers=readers_of(plan))
    isl, osl = load.isl or ASSUMED_ISL, load.osl or ASSUMED_OSL
    timed = timed_plan(start, question)
    model, work, machine = timed.model, timed.work, timed.machine
    layout, kv_format, speculation = timed.layout, timed.kv_format, timed.speculation
    admission = admission_of(start, plan.engine.name, isl=isl, osl=osl)
    concurrency = None if load.concurrency is None else load.concurrency / plan.pool.replicas
    rate = None if load.rate is None else load.rate / plan.pool.replicas
    seen = images_of(question, machine)
    if rate is not None:
        concurrency = concurrency_for_rate(
            work, machine, layout, rate=rate, isl=isl, osl=osl, kv_format=kv_format, admission=admission,
            prefix_hit=load.prefix_hit, speculation=speculation, images_s=seen.seconds,
        )  # fmt: skip
    asked = partial(
        serving_speed, concurrency=concurrency or ASSUMED_CONCURRENCY, isl=isl, osl=osl, kv_format=kv_format,
        admission=admission, prefix_hit=load.prefix_hit, rate=rate, speculation=speculation, images_s=seen.seconds,
    )  # fmt: skip
    speed = asked(work, machine, layout)
    able = None
    if rate is not None:
        able = asked(work, machine, layout, concurrency=MOST_REQUESTS, rate=None).output_tokens_per_s
    in_flight = float(np.asarray(concurrency or ASSUMED_CONCURRENCY))
    of_class = _spread(machine, model, work, in_flight)
    spread = profile_spread(of_class, machine, work, layout, isl=isl, osl=osl, concurrency=in_flight)
    speed, spread = _anchored(speed, spread, machine, served_as(work, layout), (isl, osl, in_flight))
    own = spread["tpot"] != of_class["tpot"]
    lines = operators(speed, asked(work, machine.at_datasheet(), layout), machine)
    spread = with_host(spread, speed, start=start, cluster=cluster)
    figures = speed_figures(speed, spread, lines, able_per_s=able, arriving_per_s=(rate or np.inf) * osl)
    if able is not None:
        figures = with_most(figures, able_per_s=able, osl=osl, spread=spread)
    figures = replace(of_all(figures, plan.pool.replicas), ranges=OF_POINTS if own else ranges_in_words(machine, model))
    overload = overload_warnings(figures, load, replicas=plan.pool.replicas)
    told = (*timed.warnings, *host_warnings(start, cluster), *source_warnings(machine))
    if overload:
        figures = replace(figures, ttft_s=None, request_s=None, ttft_lines={})
    return Speed(
        figures=replace(figures, mfu=None) if cluster.cards else figures,  # no one peak to compare with
        bottleneck=_bottleneck(speed, admission),
        output_tokens_per_s=float(speed.output_tokens_per_s) * plan.pool.replicas,
        warnings=(*overload, *warnings, *seen.warnings, *told),
        doing=(
            Doing(
                gpus=int(plan.gpus),
                activity=serving_activity(speed, machine, work, layout),
                clock=float(np.asarray(speed.clock)),
            ),
        ),
    )


def _anchored(
    speed: ServingSpeed, spread: SpreadFactors, machine: Machine, served: str, load: AnchorLoad
) -> tuple[ServingSpeed, SpreadFactors]:
    """Speed and bounds from measured points of this very deployment, where the terms hold any."""
    anchors: Anchors | None = None if machine.terms is None else machine.terms.anchors
    if anchors is None or (anchors.key, anchors.served) != (
        f"{machine.engine} {machine.accelerator.id} {machine.precision}",
        served,
    ):
        return speed, spread
    found = {figure: told for figure in ("tpot", "ttft") if (told := anchors.correction(figure, load)) is not None}
    bounds = {**spread, **{figure: (float(np.exp(-half)), float(np.exp(half))) for figure, (_, half) in found.items()}}
    low, high = bounds["tpot"]
    factors = {figure: found[figure][0] if figure in found else 1.0 for figure in ("tpot", "ttft")}
    return anchored(speed, **factors), bounds | {"output": (1 / high, 1 / low)}


def _spread(machine: Machine, model: Model, work: ModelWork, in_flight: float) -> SpreadFactors:
    """The bounds of the cards' class, of several kinds of cards the widest of each."""
    found = [speed_spread(one, model, in_flight=in_flight) for one in (machine, *(other for _, other in work.beside))]
    return {name: (min(one[name][0] for one in found), max(one[name][1] for one in found)) for name in found[0]}


def speed_figures(
    speed: ServingSpeed,
    spread: Mapping[str, tuple[float, float]],
    lines: tuple[OperatorTime, ...],
    *,
    able_per_s: Numbers | None = None,
    arriving_per_s: float = np.inf,
) -> SpeedEstimate:
    """The figures of ``speed`` with the bounds of ``spread`` (see `speed_spread`).

    Where requests arrive at a rate they ask for ``arriving_per_s`` output tokens a second, and ``able_per_s`` are the most that
    the plan can make: its bounds count, none above what arrives.
    """

    slot_s = float(np.asarray(speed.first_lines["slot"]))
    seen_s = float(np.asarray(speed.first_lines.get("images", 0.0)))
    sooner_s, later_s = (
        float(np.asarray(end_s)) - slot_s + part * seen_s
        for end_s, part in zip(speed.slot_wait_s, TOWER_RANGE, strict=True)
    )

    def latency(seconds: object, name: str, p50: object = None, p99: object = None, *, waits: bool = False) -> Latency:
        low, high = spread[name]
        value = float(np.asarray(seconds))
        least, most = (value + sooner_s, value + later_s) if waits else (value, value)
        return Latency(
            interval=Interval(value=value, low=least * low, high=most * high),
            p50=None if p50 is None else float(np.asarray(p50)),
            p99=None if p99 is None else float(np.asarray(p99)),
        )

    def rate(per_s: object) -> Interval:
        low, high = spread["output"]
        value = float(np.asarray(per_s))
        if able_per_s is None:
            return Interval(value=value, low=value * low, high=value * high)
        part = value / float(np.asarray(speed.output_tokens_per_s))
        able, most = part * float(np.asarray(able_per_s)), part * arriving_per_s
        return Interval(value=value, low=min(value, able * low), high=max(value, min(most, able * high)))

    mfu = float(np.asarray(speed.mfu))
    return SpeedEstimate(
        ttft_s=latency(speed.ttft_s, "ttft", speed.ttft_p50_s, speed.ttft_p99_s, waits=True),
        tpot_s=latency(speed.tpot_s, "tpot"),
        itl_s=latency(speed.tpot_s, "tpot", speed.gap_p50_s, speed.gap_p99_s),
        request_s=latency(speed.request_s, "tpot", speed.request_p50_s, speed.request_p99_s, waits=True),
        step_s=latency(speed.step_s, "tpot"),
        output_tokens_per_s=rate(speed.output_tokens_per_s),
        tokens_per_s_per_gpu=rate(speed.tokens_per_s_per_gpu),
        mfu=_at_most_all(rate(mfu)) if np.isfinite(mfu) else None,
        batch=float(np.asarray(speed.running)),
        lines={name: float(np.asarray(seconds)) for name, seconds in speed.lines.items()},
        operators=lines,
        ttft_lines={
            name: taken for name, seconds in speed.first_lines.items() if (taken := float(np.asarray(seconds))) > 0
        },
    )


def _at_most_all(share: Interval) -> Interval:
    """``share`` of a peak, which nothing exceeds."""
    return Interval(value=share.value, low=share.low, high=max(share.value, min(share.high, 1.0)))


def of_all(figures: SpeedEstimate, replicas: int) -> SpeedEstimate:
    """The figures of ``replicas`` engines from those of one: latencies and rates per GPU are the same."""
    output, most = figures.output_tokens_per_s, figures.most_requests_per_s
    return replace(
        figures,
        output_tokens_per_s=None if output is None else output.scaled(replicas),
        most_requests_per_s=None if most is None else most.scaled(replicas),
    )


def with_most(
    figures: SpeedEstimate, *, able_per_s: Numbers, osl: int, spread: Mapping[str, tuple[float, float]]
) -> SpeedEstimate:
    """The largest rate that is carried put in: ``able_per_s`` are the output tokens a second that can be made at most."""
    value, (low, high) = float(np.asarray(able_per_s)) / osl, spread["output"]
    return replace(figures, most_requests_per_s=Interval(value=value, low=value * low, high=value * high))


def _bottleneck(speed: ServingSpeed, admission: Admission) -> Bottleneck:
    resource = cast(Resource, str(np.asarray(speed.bottleneck())))
    if resource == "capacity":
        return Bottleneck(
            resource=resource,
            detail=f"the cache holds {show_count(float(admission.holds))} such requests, the rest wait",
        )
    share = float(np.asarray(speed.resources[resource])) / float(np.asarray(speed.tpot_s))
    line = max(speed.lines, key=lambda name: float(np.asarray(speed.lines[name])))
    part = float(np.asarray(speed.lines[line])) / float(np.asarray(speed.tpot_s))
    return Bottleneck(
        resource=resource,
        detail=f"{share:.0%} of the time per token; the largest line is {line.replace('_', ' ')} ({part:.0%})",
    )


def source_warnings(machine: Machine) -> tuple[PlanWarning, ...]:
    """Where the speed comes from: a profile, runs of this deployment, of deployments like it, or the datasheet."""
    if machine.era.name:
        slower = f"speed is that of {machine.era.name}: of runs of its time, hence its width"
        return (PlanWarning(code="engine-era", message=slower), *_source_warnings(machine))
    return _source_warnings(machine)


def _source_warnings(machine: Machine) -> tuple[PlanWarning, ...]:
    anchors = None if machine.terms is None else machine.terms.anchors
    if anchors is not None:
        known = anchors.key == f"{machine.engine} {machine.accelerator.id} {machine.precision}"
        count = len({load for told in anchors.points.values() for load, _ in told})
        words = (
            f"speed starts from measured points at {counted(count, 'load')}"
            if known
            else f"the runs given are of {anchors.key}"
        )
        further = anchors.next_load()
        words += f"; {further}" if known and further is not None else ""
        return (PlanWarning(code="anchored", message=words),)
    profile = None if machine.terms is None else machine.terms.profile
    if profile is not None:
        name, key = profile
        if key == f"{machine.engine} {machine.accelerator.id} {machine.precision}":
            return (PlanWarning(code="profile", message=f"speed as calibrated by the profile {name}"),)
        return (PlanWarning(code="profile", message=f"the profile {name} is for {key}, not for this plan: not used"),)
    if not machine.coefficients.known_card:
        words = (
            "speed comes from datasheet figures and typical efficiencies; no kernel of this kind of card was measured"
        )
        return (PlanWarning(code="spec-sheet-speed", message=words),)
    if machine.measured:
        return ()
    words = (
        f"speed is carried over from runs of {machine.engine} on other cards or in other precisions, hence its width"
    )
    return (PlanWarning(code="unmeasured-deployment", message=words),)
