"""Plans ranked under a trace: the closed form finds those that carry its mean load, the simulation says what its users see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trilemma.ask.answers import Shown
from trilemma.columns import document_of
from trilemma.errors import InputError
from trilemma.simulation.serving.compared import PlanCandidate, PlanRanking, ranked
from trilemma.simulation.serving.simulation import SimulationRules
from trilemma.simulation.serving.stated import StatedTraffic, stated_traffic
from trilemma.workloads import Serving

if TYPE_CHECKING:
    from trilemma.ask.searched import ServingPlans
    from trilemma.search.found import Found

#: Requests of a trace that rank plans unless more are asked for, and plans that are simulated.
_REQUESTS, _CANDIDATES = 5000, 12
#: The rule before several engines.
_ROUTER = "least-loaded"


class PlansRanked(Shown, PlanRanking):
    """Plans in the order of what users saw of them."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether a plan holds the targets at the 99th percentile (without targets: whether one answers every request)."""
        return bool(self.plans) and self.plans[0].holds

    def document(self, *, explain: bool) -> dict[str, Any]:
        return document_of(self, explain=explain)

    def screen(self, *, explain: bool, width: int) -> str:  # noqa: ARG002 - nothing is left to explain
        from trilemma.report.replayed import render_ranking

        return render_ranking(self, width=width)

    def __repr__(self) -> str:
        best = self.plans[0].layout if self.plans else "none fits"
        return f"<PlansRanked: {len(self.plans)} plans of {self.model[:80]}, best {best}>"

    __str__ = Shown.__str__


def ranked_under_trace(model: Any, gpu: Any, options: SimpleNamespace) -> PlansRanked:
    """The best plans for the requests of a trace, by their simulated 99th percentiles and their price."""
    from trilemma.ask.serving import search

    for name in ("serve", "isl", "osl", "rate", "concurrency"):
        if getattr(options, name, None) is not None:
            raise InputError(f"`{name}` is what a `trace` says; leave one of them out")
    traffic = stated_traffic(
        trace=options.trace, arrivals=None, isl=None, osl=None, lengths=None, requests=options.requests or _REQUESTS,
        seed=0, scale_rate=1.0, begin_s=0.0, span_s=None,
    )  # fmt: skip
    load, isl, osl, rate, many = _load(traffic, options)
    wanted = options.top
    options.top = max(_CANDIDATES, wanted)
    plans = search(model, gpu, options, workload=load)
    rules = SimulationRules(
        router=_ROUTER,
        ttft_s=float("inf") if load.ttft_ms is None else load.ttft_ms / 1e3,
        tpot_s=float("inf") if load.tpot_ms is None else load.tpot_ms / 1e3,
    )
    found, left_out = ranked(_candidates(plans), traffic, rules)
    targets = {name: value for name, value in (("ttft", load.ttft_ms), ("tpot", load.tpot_ms)) if value is not None}
    return PlansRanked(
        model=plans.model.name, gpu=plans.cluster.accelerator.id, traffic=traffic.words, requests=many,
        mean_input_tokens=isl, mean_output_tokens=osl, requests_per_s=rate, targets_ms=targets,
        searched=plans.result.searched, legal=plans.result.legal, plans=found[:wanted], left_out=left_out,
    )  # fmt: skip


def _load(traffic: StatedTraffic, options: SimpleNamespace) -> tuple[Serving, float, float, float, int]:
    """The mean load of the requests, their mean lengths, their rate and their number."""
    many, prompt, output, longest, last_s = 0, 0, 0, 0, 0.0
    for one in traffic.again():
        many, prompt, output, last_s = many + 1, prompt + one.isl, output + one.osl, one.arrival_s
        longest = max(longest, one.isl + one.osl)
    if many < 2 or last_s <= 0:
        raise InputError(f"{Path(str(options.trace)).name} holds no requests that arrive over time; give at least two")
    isl, osl, rate = prompt / many, output / many, (many - 1) / last_s
    load = Serving(
        isl=max(round(isl), 1), osl=max(round(osl), 1), rate=rate, context=options.context or longest,
        ttft_ms=options.ttft, tpot_ms=options.tpot,
    )  # fmt: skip
    return load, isl, osl, rate, many


def _candidates(plans: ServingPlans) -> Iterator[PlanCandidate]:
    """Plans of the search, each layout and precision once; limits of requests are the engine's own again."""
    seen = set()
    for found in plans.result.plans:
        pools = tuple(replace(one, options=replace(one.options, max_seqs=None)) for one in found.plan.pools)
        key = (found.precision.name, found.kv_format, *((one.role, one.replicas, str(one.layout)) for one in pools))
        if key not in seen:
            seen.add(key)
            yield _candidate(found, pools)
        if len(seen) == _CANDIDATES:
            return


def _candidate(found: Found, pools: Any) -> PlanCandidate:
    from trilemma import engines

    estimate, plan = found.estimate, replace(found.plan, pools=pools)
    question = replace(estimate.question, plan=plan)
    speed = estimate.speed
    engine = engines.get(plan.engine.name)
    command = engine.line(model=question.named, plan=plan) if len(pools) == 1 else ""
    return PlanCandidate(
        question=question, precision=found.precision.name,
        kv_format=found.kv_format, command=command,
        expected_ttft_ms=None if speed is None or speed.ttft_s is None else speed.ttft_s.interval.value * 1e3,
        expected_tpot_ms=None if speed is None or speed.tpot_s is None else speed.tpot_s.interval.value * 1e3,
    )  # fmt: skip
