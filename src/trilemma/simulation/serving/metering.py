"""What a run cost and drew: dollars and joules of all cards until the last request has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trilemma.estimate.power import Doing, drawn
from trilemma.intervals import Interval
from trilemma.simulation.serving.busy_time import activity_of
from trilemma.simulation.serving.deployment import SimulatedPlan
from trilemma.simulation.serving.outcome import EnergyOfRun, MeteredCost

if TYPE_CHECKING:
    from trilemma.simulation.serving.simulation import SimulatedRun

#: Joules of a kilowatt-hour.
_KWH_JOULES = 3.6e6


def cost_of(plan: SimulatedPlan, done: SimulatedRun, energy: EnergyOfRun | None) -> MeteredCost | None:
    """What all cards of the plan cost, and of ``energy`` that of a token and a request."""
    book, seconds = done.book, max(done.book.ended_s, 1e-9)
    price = plan.question.cluster.usd_per_hour
    if price is None or not book.output_tokens:
        return None
    usd = price.value * seconds / 3600
    token, request = (None, None) if energy is None else (energy.joules_per_token, energy.joules_per_request)
    return MeteredCost(
        usd=usd,
        usd_per_million_tokens=usd / book.output_tokens * 1e6,
        usd_per_request=usd / book.completed,
        joules_per_token=None if token is None else token.value,
        joules_per_request=None if request is None else request.value,
    )


def energy_of(plan: SimulatedPlan, done: SimulatedRun) -> EnergyOfRun | None:
    """What all cards of the plan draw, those of engines that are not up too; None where the limit of a card is not known."""
    book, seconds = done.book, max(done.book.ended_s, 1e-9)
    pools = [(plan, done.engines)] if plan.prefill is None else [(plan.prefill, done.prefill), (plan, done.engines)]
    gpus = [int(pool.gpus) for pool in sorted(plan.question.plan.pools, key=lambda pool: pool.role != "prefill")]
    doing = [
        Doing(gpus=cards, activity=activity_of(pool.timed, [one.busy for one in engines], seconds))
        for cards, (pool, engines) in zip(gpus, pools, strict=True)
    ]
    rate = book.output_tokens / seconds
    found = drawn(plan.question.cluster, doing, Interval.exact(rate) if rate else None)
    if found is None:
        return None
    return EnergyOfRun(
        watts=found.watts,
        kwh=found.watts.scaled(seconds / _KWH_JOULES),
        joules_per_token=found.joules_per_token,
        joules_per_request=found.watts.scaled(seconds / book.completed) if book.completed else None,
    )
