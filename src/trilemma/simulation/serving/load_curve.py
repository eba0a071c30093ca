"""Latency against load: the same requests at rates from a tenth of what the plan answers to beyond it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from trilemma.errors import InputError
from trilemma.simulation.serving.deployment import SimulatedPlan
from trilemma.simulation.serving.outcome import LoadCurve, LoadPoint
from trilemma.simulation.serving.simulation import SimulationRules, metrics_of, run_once
from trilemma.simulation.serving.stated import StatedTraffic
from trilemma.simulation.serving.traffic import Arrival

SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1)
#: Requests of each run: enough for a 99th percentile.
_MOST = 5000
#: A tail twice as long as without load is where queues begin.
_KNEE = 2.0
#: How often requests that are all there fill the engines, and most of them.
_FILLS, _MOST_AT_ONCE = 6, 50_000


def load_curve(plan: SimulatedPlan, traffic: StatedTraffic, rules: SimulationRules) -> LoadCurve:
    """The curve of ``plan`` for the lengths and the pattern of ``traffic``. Raises `InputError` where all come at once."""
    requests = list(itertools.islice(traffic.again(), _MOST))
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    if len(requests) < 2 or span_s <= 0:
        raise InputError(
            "`load_curve` spreads requests over time, and these come all at once; give `arrivals` such as poisson:1"
        )
    rate = (len(requests) - 1) / span_s
    saturation = saturation_of(plan, requests)
    points = []
    for share in SHARES:
        asked = saturation * share

        def hastened(factor: float = asked / rate) -> Iterator[Arrival]:
            return (one._replace(arrival_s=one.arrival_s / factor) for one in requests)

        done = run_once(plan, hastened(), rules)
        points.append(
            LoadPoint(
                requests_per_s=asked,
                share_of_saturation=share,
                completed_per_s=done.book.completed / max(done.book.ended_s, 1e-9),
                metrics=metrics_of(done),
                goodput_share=done.book.good / max(done.book.arrived, 1),
            )
        )
    return LoadCurve(saturation_requests_per_s=saturation, knee_requests_per_s=_knee(points), points=tuple(points))


def saturation_of(plan: SimulatedPlan, requests: list[Arrival]) -> float:
    """Requests a second that are answered where all are there at once, from the first fifth to the last of them.

    As many as fill the engines several times over, the same ones again where they are fewer: those that begin together end
    together, and tell nothing of a steady state.
    """
    many = min(max(len(requests), _FILLS * plan.most_running * plan.engines), _MOST_AT_ONCE)
    at_once = (requests[at % len(requests)]._replace(arrival_s=0.0) for at in range(many))
    ends: list[float] = []
    run_once(plan, at_once, SimulationRules(), lambda one: ends.append(one.finish_s))
    if not ends:
        raise InputError("no request fits into this plan; give shorter ones or a larger `context`")
    low, high = int(0.2 * len(ends)), min(int(0.8 * len(ends)), len(ends) - 1)
    if high <= low or ends[high] <= ends[low]:
        return len(ends) / max(ends[-1], 1e-9)
    return (high - low) / (ends[high] - ends[low])


def _knee(points: list[LoadPoint]) -> float:
    tails = [(one.requests_per_s, one.metrics.ttft_ms.p99) for one in points if one.metrics.ttft_ms is not None]
    if not tails:
        return 0.0
    within = itertools.takewhile(lambda one: one[1] <= _KNEE * tails[0][1], tails)
    return max(rate for rate, _ in within)
