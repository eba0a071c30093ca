"""Serving simulated, as an answer that shows itself: the engines' schedulers under traffic that is replayed or drawn."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trilemma.ask.answers import Shown
from trilemma.ask.nouns import cluster_of, engines_of, weights_of
from trilemma.ask.options import settled
from trilemma.ask.profiles import terms_of
from trilemma.ask.screen import screen_width
from trilemma.ask.simulated_beside import changed_by, other_options
from trilemma.ask.simulation_options import SIMULATE, SIMULATION
from trilemma.columns import document_of
from trilemma.errors import InputError
from trilemma.estimate.start_up_time import start_up_time
from trilemma.outside_files import written
from trilemma.quantities import GIB
from trilemma.question import Question
from trilemma.simulation.serving.adapter_traffic import AdapterMix
from trilemma.simulation.serving.calibrated import CalibratedSteps, calibrated
from trilemma.simulation.serving.compared import RequestTimes, other_run
from trilemma.simulation.serving.deployment import SimulatedPlan, simulated_plan, slower
from trilemma.simulation.serving.fleet import EngineFailure, ScalingRule
from trilemma.simulation.serving.load_curve import load_curve
from trilemma.simulation.serving.measured_requests import read_measured
from trilemma.simulation.serving.outcome import OtherRun, ServingSimulation
from trilemma.simulation.serving.plan_extras import ExtrasAsked, with_adapters
from trilemma.simulation.serving.simulation import SimulationRules, metrics_of, run_once, told
from trilemma.simulation.serving.stated import StatedTraffic, stated_traffic
from trilemma.simulation.serving.traffic import ServedRequest
from trilemma.timing.intervals import own_spread, pools_spread, speed_spread
from trilemma.workloads import Serving

#: Requests up to which the ends of the error bars are simulated too without being asked for.
_BOUNDED = 20_000


def simulate(model: Any, gpu: Any, **options: Any) -> Simulated:
    """Serving over time: percentiles of every latency, goodput, queue and cache of one plan under real traffic.

    ``simulate("llama-3.1-8b", "h100-sxm", arrivals="poisson:4", isl="lognormal:1024:0.8", osl=256)``; ``trace`` is a file
    of requests with their times. Options of the plan are those of `fit`.
    """
    asked = settled(SIMULATE, options, SIMULATION)
    traffic = stated_traffic(
        trace=asked.trace, arrivals=asked.arrivals, isl=asked.isl, osl=asked.osl, lengths=asked.lengths,
        requests=asked.requests, seed=asked.seed, scale_rate=asked.scale_rate, begin_s=asked.begin, span_s=asked.span,
        turns=asked.turns, think=asked.think, sessions_in_order=asked.sessions_in_order,
    )  # fmt: skip
    traffic = _for_adapters(traffic, asked)
    plan, told_of = _calibrated(_plan(model, gpu, asked, traffic), asked)
    rules = _rules(asked, plan)
    times = RequestTimes()
    with _written(asked.per_request) as each:
        done = run_once(plan, traffic.again(), rules, _both(times, each) if asked.compare is not None else each)
    goals = asked.ttft is not None or asked.tpot is not None
    bounds = _bounds(plan, traffic, rules, asked.bounds, done.book.arrived, told_of)
    inputs = _inputs(plan, traffic, rules) | ({} if told_of is None else {"calibrated": told_of.words})
    curve = load_curve(plan, traffic, rules) if asked.load_curve else None
    beside = None
    if asked.compare is not None:
        given = {name: value for name, value in options.items() if value is not None}
        beside = _beside(asked.compare, {"model": model, "gpu": gpu} | given, traffic, times)
    return Simulated.of(
        told(plan, done, inputs=inputs, goals=goals, bounds=bounds, first=traffic.first(), curve=curve, compared=beside)
    )


def _plan(model: Any, gpu: Any, asked: SimpleNamespace, traffic: StatedTraffic) -> SimulatedPlan:
    extras = ExtrasAsked(
        host_cache_bytes=_positive(asked.kv_offload, "kv_offload") * GIB if asked.kv_offload is not None else 0.0,
        serves_adapters=traffic.has_adapters, host_adapters=asked.host_loras, adapter_read_s=asked.lora_read / 1e3,
        ahead=asked.async_scheduling,
    )  # fmt: skip
    question = _asked_question(model, gpu, asked)
    if traffic.has_adapters:
        pools = tuple(
            replace(pool, options=with_adapters(
                pool.options, question.plan.engine.name, slots=asked.max_loras, rank=asked.lora_rank
            ))
            for pool in question.plan.pools
        )  # fmt: skip
        question = replace(question, plan=replace(question.plan, pools=pools))
    return simulated_plan(
        question,
        typical_tokens=traffic.typical_tokens(),
        policy=asked.policy,
        cache_tokens=asked.cache_tokens,
        extras=extras,
    )


def _for_adapters(traffic: StatedTraffic, asked: SimpleNamespace) -> StatedTraffic:
    """``traffic`` with the adapters that are drawn, or that its trace names."""
    mix = None if asked.adapters is None else AdapterMix.parse(asked.adapters)
    if asked.lora_read < 0:
        raise InputError(f"`lora_read` {asked.lora_read:g} is out of range; give milliseconds from 0")
    if mix is None and (asked.trace is None or not any(one.adapter for one in traffic.first())):
        for name in ("max_loras", "lora_rank", "host_loras"):
            if getattr(asked, name) is not None:
                raise InputError(
                    f"`{name}` is of adapters, and no request is for any; give `adapters` N, such as 100:1"
                )
        return traffic
    return traffic.for_adapters(mix, asked.seed)


def _calibrated(plan: SimulatedPlan, asked: SimpleNamespace) -> tuple[SimulatedPlan, CalibratedSteps | None]:
    """``plan`` as requests that it answered say, where they are stated."""
    if asked.measured is None:
        return plan, None
    found = calibrated(plan, read_measured(Path(str(asked.measured))))
    return found.plan, found


def _rules(asked: SimpleNamespace, plan: SimulatedPlan) -> SimulationRules:
    return SimulationRules(
        router=asked.router,
        scaling=None if asked.autoscale is None else ScalingRule.parse(asked.autoscale, _start_up_s(plan)),
        failures=() if asked.fail is None else tuple(map(EngineFailure.parse, asked.fail.split(","))),
        timeout_s=_positive(asked.timeout, "timeout"),
        ttft_s=_positive(asked.ttft, "ttft") / 1e3,
        tpot_s=_positive(asked.tpot, "tpot") / 1e3,
    )


def _start_up_s(plan: SimulatedPlan) -> float | None:
    """How long one more engine takes until it answers, as `fit` says."""
    told = start_up_time(plan.start, plan.question, plan.question.plan.pools[-1]).seconds
    return None if told is None else told.value


def _beside(given: Any, first: Mapping[str, Any], traffic: StatedTraffic, times: RequestTimes) -> OtherRun:
    """The same requests under other options."""
    options = other_options(given, first)
    model, gpu = options.pop("model"), options.pop("gpu")
    asked = settled(SIMULATE, options, SIMULATION)
    plan = _plan(model, gpu, asked, traffic)
    rules = _rules(asked, plan)
    goals = asked.ttft is not None or asked.tpot is not None
    inputs = _inputs(plan, traffic, rules) | {
        "changed": {name: str(value) for name, value in changed_by(given).items()}
    }
    return other_run(plan, traffic, rules, inputs=inputs, first=times, goals=goals)


def _both(times: RequestTimes, each: Callable[[ServedRequest], None] | None) -> Callable[[ServedRequest], None]:
    def told_of(request: ServedRequest) -> None:
        times(request)
        if each is not None:
            each(request)

    return told_of


def question_of(model: Any, gpu: Any, **options: Any) -> Question[Any, Any]:
    """The plan that options of a simulation name, as `simulate` takes it."""
    return _asked_question(model, gpu, settled(SIMULATE, options, SIMULATION))


def _asked_question(model: Any, gpu: Any, asked: SimpleNamespace) -> Question[Any, Any]:
    cluster = cluster_of(gpu, asked, mixed=True)
    weights = weights_of(
        model, cluster.accelerator, precision=asked.precision, models=asked.models, engine=asked.engine
    )
    load = Serving(context=asked.context)
    plan, cluster = engines_of(gpu, asked, cluster, context=asked.context, quantization=weights.on_load)
    free_bytes = None if asked.free_gib is None else asked.free_gib * GIB
    return weights.asked(
        cluster=cluster, workload=load, plan=plan, free_bytes=free_bytes, terms=terms_of(asked.profile)
    )


def _bounds(
    plan: SimulatedPlan, traffic: StatedTraffic, rules: SimulationRules, asked: bool | None, many: int,
    told_of: CalibratedSteps | None,
) -> Mapping[str, Any]:  # fmt: skip
    """The metrics with every time at either end of its error bar: the same traffic, two more runs."""
    if asked is False or (asked is None and many > _BOUNDED):
        return {}
    if told_of is not None:
        low, high = own_spread(plan.timed.machine, plan.timed.model, least=told_of.off)
    else:
        spread = speed_spread if plan.prefill is None else pools_spread
        low, high = spread(plan.timed.machine, plan.timed.model)["tpot"]
    ends = {
        name: document_of(metrics_of(run_once(slower(plan, factor), traffic.again(), rules)))
        for name, factor in (("low", low), ("high", high))
    }
    return {"time_factors": [low, high], "runs": 2, **ends}


def _inputs(plan: SimulatedPlan, traffic: StatedTraffic, rules: SimulationRules) -> dict[str, Any]:
    question = plan.question
    layouts = [
        {**{name: getattr(pool.layout, name) for name in ("tp", "pp", "dp", "ep")}, "replicas": pool.replicas}
        for pool in question.plan.pools
    ]
    roles = [pool.role for pool in question.plan.pools]
    return {
        "model": question.model.name,
        "gpu": question.cluster.accelerator.id,
        "gpus": question.plan.gpus,
        "engine": question.plan.engine.name,
        "version": plan.start.version,
        "layout": layouts[-1],
        **({"pools": dict(zip(roles, layouts, strict=True))} if len(roles) > 1 else {}),
        "policy": plan.rules.policy.replace(" ", "-"),
        "async_scheduling": plan.ahead,
        "max_seqs": plan.most_running,
        "max_batched_tokens": plan.tokens,
        "context": plan.context,
        "router": rules.router,
        "traffic": traffic.words,
        "targets_ms": {
            name: value * 1e3
            for name, value in (("ttft", rules.ttft_s), ("tpot", rules.tpot_s))
            if value < float("inf")
        },
    }


def _positive(value: float | None, name: str) -> float:
    if value is None:
        return float("inf")
    if value <= 0:
        raise InputError(f"`{name}` {value:g} is out of range; give a number above 0")
    return value


@contextmanager
def _written(path: Any) -> Iterator[Callable[[ServedRequest], None] | None]:
    """What writes a line for each request that was answered, in the order in which they end."""
    if path is None:
        yield None
        return
    with written(str(path)), Path(str(path)).open("w", encoding="utf-8", newline="") as file:
        names = ("request", "arrival_s", "first_token_s", "finish_s", "input", "output", "preemptions", "scheduled_s")
        if str(path).endswith(".csv"):
            lines = csv.writer(file)
            lines.writerow(names)
            yield lambda request: lines.writerow(_line(request))
        else:
            yield lambda request: print(json.dumps(dict(zip(names, _line(request), strict=True))), file=file)


def _line(request: ServedRequest) -> tuple[float, ...]:
    arrival = request.arrival
    times = (round(second, 6) for second in (arrival.arrival_s, request.first_s, request.finish_s))
    return (request.index, *times, request.isl, request.osl, request.preempted, round(request.entered_s, 6))


class Simulated(Shown, ServingSimulation):
    """A simulation that can show itself."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether requests were answered and the 99th percentiles hold the targets that were stated."""
        targets, metrics = self.inputs["targets_ms"], self.metrics
        held = (
            figures is None or figures.p99 <= targets.get(name, float("inf"))
            for name, figures in (("ttft", metrics.ttft_ms), ("tpot", metrics.tpot_ms))
        )
        return self.completed > 0 and all(held)

    def chart(self) -> dict[str, Any] | None:
        """A Vega-Lite specification: latency against load, distributions, queue and cache over time."""
        from trilemma.report.charts import simulation_chart

        return simulation_chart(self)

    def show(self, *, explain: bool = False, width: int | None = None) -> str:
        from trilemma.report.simulation import render_simulation

        return render_simulation(self, explain=explain, width=width or screen_width())

    def __repr__(self) -> str:
        return f"<Simulated: {self.completed} of {self.requests} requests in {self.seconds_simulated:.1f} s>"

    __str__ = Shown.__str__
