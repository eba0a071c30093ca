"""Cards for a training job: the fewest of each kind that hold it, and that finish in time where a time is stated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trilemma.capacity.bounds import least_for_training
from trilemma.capacity.choice import CardChoice, Recommendation
from trilemma.capacity.offers import Limits, Offers
from trilemma.capacity.ranking import Progress, ranked
from trilemma.estimate.training import estimate_training
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.intervals import Interval
from trilemma.models.architecture import Model
from trilemma.plans.training import Offload, TrainingPlan
from trilemma.question import Question
from trilemma.search.training import search_training
from trilemma.search.training_layouts import TrainingConstraints
from trilemma.workloads import TrainingWorkload

_HOURS = 24.0


def recommend_training(
    model: Model,
    workload: TrainingWorkload,
    offers: Offers,
    *,
    settled: TrainingConstraints,
    top: int = 5,
    limits: Limits,
    terms: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Recommendation:
    """The ``top`` kinds of card, with their number, that train ``workload`` at the least cost of an hour: the fewest, doubling
    from one, that hold a plan of any layout, and that finish its tokens within ``limits.days``.

    State stays on the cards unless ``settled`` sends it to the host. ``terms`` are the failures and checkpoints of the run, as
    keywords of an estimate.
    """
    began = time.perf_counter()
    settled = settled if settled.offload is not None else replace(settled, offload=Offload())

    def least(card: Accelerator) -> int:
        return least_for_training(model, card, workload, limits.days)

    def laid(card: Accelerator) -> CardChoice | str:
        gpus, late = 1 << (least(card) - 1).bit_length(), False
        while gpus <= limits.gpus:
            choice = _on(model, workload, offers, card, gpus, settled, terms or {})
            if isinstance(choice, str) or (choice is not None and not (late := _is_late(choice, limits.days))):
                return choice
            gpus *= 2
        return f"not done within {limits.days:g} days" if late else "no number of them holds the job"

    best = ranked(offers, least, laid, top=top, limits=limits, progress=progress)
    kept = "" if settled.offload != Offload() else "state stays on the cards; --offload sends it to the host"
    return Recommendation(
        model=model,
        workload=workload,
        spared=offers.spared,
        choices=best.choices,
        asked=len(offers.cards),
        searched=best.searched,
        left_out=dict(best.left_out.most_common()),
        assumed=(kept,) if kept else (),
        seconds=time.perf_counter() - began,
    )


def _on(
    model: Model, workload: TrainingWorkload, offers: Offers, card: Accelerator, gpus: int, settled: TrainingConstraints,
    terms: Mapping[str, Any],
) -> CardChoice | str | None:  # fmt: skip
    """The best plan on so many cards; None where none fits."""
    cluster = Cluster(accelerator=card, gpus=gpus, gpus_per_node=min(gpus, card.gpus_per_node))
    found = search_training(model, cluster, workload, settled=settled, top=1)
    if not found.plans:
        return None
    plan: TrainingPlan = found.plans[0].plan
    estimate = estimate_training(Question(model=model, cluster=cluster, workload=workload, plan=plan), **terms)
    if not estimate.fits:
        return None
    choice = offers.chosen(card, gpus, estimate, plan.recipe.name)
    return choice if isinstance(choice, str) else _with_run(choice)


def _with_run(choice: CardChoice) -> CardChoice:
    """``choice`` with the days of a run of stated length and the dollars for them, whose range spans that of the prices too."""
    told, hour = choice.estimate.training_run.get("days"), choice.usd_per_hour
    if told is None:
        return choice
    days = Interval(value=told["value"], low=told["low"], high=told["high"])
    if hour is None:
        return replace(choice, days=days)
    usd = Interval(
        value=days.value * _HOURS * hour.value, low=days.low * _HOURS * hour.low, high=days.high * _HOURS * hour.high
    )
    return replace(choice, days=days, run_usd=usd)


def _is_late(choice: CardChoice, days: float | None) -> bool:
    return days is not None and choice.days is not None and choice.days.value > days
