"""The same requests served otherwise: another configuration beside the first, or plans of a search by their tails."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from trilemma.columns import column
from trilemma.errors import InputError
from trilemma.plans.words import plan_words
from trilemma.question import ServingQuestion
from trilemma.simulation.serving.deployment import SimulatedPlan, simulated_plan
from trilemma.simulation.serving.metering import cost_of, energy_of
from trilemma.simulation.serving.outcome import EnergyOfRun, Goodput, MeteredCost, OtherRun, UserMetrics
from trilemma.simulation.serving.simulation import (
    SimulatedRun,
    SimulationRules,
    goodput_of,
    metrics_of,
    run_once,
)
from trilemma.simulation.serving.stated import StatedTraffic
from trilemma.simulation.serving.traffic import ServedRequest

#: Requests whose times are held to compare them one by one.
_MOST_PAIRED = 1_000_000
#: Seconds apart that count as the same.
_SAME_S = 1e-9


class RequestTimes:
    """Seconds that each request took, by its number; the first million of them."""

    def __init__(self) -> None:
        self._index, self._seconds = array("q"), array("d")

    def __call__(self, request: ServedRequest) -> None:
        if len(self._index) < _MOST_PAIRED:
            self._index.append(request.index)
            self._seconds.append(request.finish_s - request.arrival.arrival_s)

    def quicker_in(self, other: RequestTimes) -> float | None:
        """The share of the requests answered in both that took less time in ``other``; None for none."""
        mine, theirs = (dict(zip(one._index, one._seconds, strict=True)) for one in (self, other))
        both = [(seconds, theirs[at]) for at, seconds in mine.items() if at in theirs]
        if not both:
            return None
        before, after = np.array(both).T
        return float(np.mean(after < before - _SAME_S))


def other_run(
    plan: SimulatedPlan, traffic: StatedTraffic, rules: SimulationRules, *, inputs: Mapping[str, Any], first: RequestTimes,
    goals: bool,
) -> OtherRun:  # fmt: skip
    """The requests of ``traffic`` on ``plan`` and under ``rules``, beside a run that took ``first``."""
    times = RequestTimes()
    done = run_once(plan, traffic.again(), rules, times)
    book, seconds = done.book, max(done.book.ended_s, 1e-9)
    energy = energy_of(plan, done)
    return OtherRun(
        inputs=inputs, requests=book.arrived, completed=book.completed, rejected=book.rejected,
        abandoned=book.abandoned, metrics=metrics_of(done), output_tokens_per_s=book.output_tokens / seconds,
        requests_per_s=book.completed / seconds, preemptions=sum(one.preemptions for one in done.engines),
        goodput=goodput_of(done) if goals else None, cost=cost_of(plan, done, energy), energy=energy,
        quicker_share=first.quicker_in(times),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedPlan:
    """A plan of a search with its figures under real traffic: ``holds`` the targets at the 99th percentile, ``expected_ttft_ms``
    and ``expected_tpot_ms`` are the means that its closed form says of the mean load."""

    rank: int
    layout: str
    precision: str
    kv_format: str
    gpus: int
    holds: bool
    completed: int
    rejected: int
    metrics: UserMetrics
    goodput: Goodput
    output_tokens_per_s: float
    preemptions: int
    usd_per_hour: float | None
    cost: MeteredCost | None
    energy: EnergyOfRun | None
    expected_ttft_ms: float | None
    expected_tpot_ms: float | None
    command: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRanking:
    """Plans in the order of what users saw: those that hold the targets first, then by price, then by the slowest requests."""

    schema: Literal["trilemma/replayed-plans@1"] = "trilemma/replayed-plans@1"
    model: str
    gpu: str
    traffic: str
    requests: int
    mean_input_tokens: float
    mean_output_tokens: float
    requests_per_s: float
    targets_ms: Mapping[str, float] = field(metadata=column(exact=True))
    searched: int
    legal: int
    plans: tuple[ReplayedPlan, ...] = field(metadata=column(keep="empty"))
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanCandidate:
    """One plan of a search: its ``question``, the words of its weights, and what its closed form says in milliseconds."""

    question: ServingQuestion
    precision: str
    kv_format: str
    command: str
    expected_ttft_ms: float | None
    expected_tpot_ms: float | None


def ranked(
    candidates: Iterable[PlanCandidate], traffic: StatedTraffic, rules: SimulationRules
) -> tuple[tuple[ReplayedPlan, ...], tuple[str, ...]]:
    """Every candidate under ``traffic``, best first, and why others were left out."""
    found, left_out = [], []
    for one in candidates:
        words = plan_words(one.question.plan)
        try:
            plan = simulated_plan(one.question, typical_tokens=traffic.typical_tokens())
        except InputError as error:
            left_out.append(f"{words}: {error}")
            continue
        found.append(_replayed(one, words, plan, run_once(plan, traffic.again(), rules), rules))
    order = sorted(found, key=_standing)
    return tuple(replace(one, rank=at) for at, one in enumerate(order, 1)), tuple(left_out)


def _replayed(
    one: PlanCandidate, words: str, plan: SimulatedPlan, done: SimulatedRun, rules: SimulationRules
) -> ReplayedPlan:
    metrics, price = metrics_of(done), one.question.cluster.usd_per_hour
    tails = ((metrics.ttft_ms, rules.ttft_s), (metrics.tpot_ms, rules.tpot_s))
    held = done.book.completed == done.book.arrived and all(
        figures is None or figures.p99 <= goal_s * 1e3 for figures, goal_s in tails
    )
    energy = energy_of(plan, done)
    return ReplayedPlan(
        rank=0, layout=words, precision=one.precision, kv_format=one.kv_format, gpus=int(one.question.plan.gpus), holds=held,
        completed=done.book.completed, rejected=done.book.rejected, metrics=metrics, goodput=goodput_of(done),
        output_tokens_per_s=done.book.output_tokens / max(done.book.ended_s, 1e-9),
        preemptions=sum(engine.preemptions for engine in done.engines),
        usd_per_hour=None if price is None else price.value, cost=cost_of(plan, done, energy), energy=energy,
        expected_ttft_ms=one.expected_ttft_ms, expected_tpot_ms=one.expected_tpot_ms, command=one.command,
    )  # fmt: skip


def _standing(one: ReplayedPlan) -> tuple[Any, ...]:
    slowest = one.metrics.e2e_ms.p99 if one.metrics.e2e_ms is not None else float("inf")
    return (not one.holds, one.gpus if one.usd_per_hour is None else one.usd_per_hour, slowest)
