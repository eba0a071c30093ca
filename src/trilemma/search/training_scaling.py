"""How a job scales: its best plan at every power of two of GPUs, and the network that would hide its traffic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trilemma.columns import column
from trilemma.errors import InputError
from trilemma.estimate.training import estimate_training
from trilemma.estimate.training_price import step_of
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans.words import plan_words
from trilemma.question import Question
from trilemma.search.training import search_training
from trilemma.search.training_layouts import TrainingConstraints
from trilemma.timing.training_step import COMMUNICATION, StepTime
from trilemma.workloads import TrainingWorkload

#: A curve ends after so many doublings.
_MOST_POINTS = 8
#: Lines of a step that are no computing.
_NOT_COMPUTING = (*COMMUNICATION, "bubble", "stragglers", "step", "loading", "offload")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPoint:
    """The best plan on so many GPUs: tokens a second of all, and of a GPU over that of the first point (``efficiency``).

    ``network_bytes_per_s`` is what a GPU would need of the wire that its collectives cross for all of them to run within the
    time that it computes; ``run`` is the length of the run where it is stated.
    """

    gpus: int
    plan: str
    step_s: float
    tokens_per_s: float
    efficiency: float
    comm_fraction: float
    network_bytes_per_s: float
    run: Mapping[str, Any] = field(default_factory=dict, metadata=column(exact=True))


def scaling(
    model: Model, cluster: Cluster, workload: TrainingWorkload, settled: TrainingConstraints, terms: Mapping[str, Any]
) -> tuple[ScalingPoint, ...]:
    """Points from the fewest GPUs, a power of two, that hold the job up to those of ``cluster``, at one global batch; degrees
    that are settled hold for each."""
    found: list[ScalingPoint] = []
    for gpus in _counts(cluster.gpus):
        here = replace(cluster, gpus=gpus, gpus_per_node=min(gpus, cluster.gpus_per_node))
        try:
            plans = search_training(model, here, workload, settled=settled, top=1).plans
        except InputError:
            continue  # degrees that are settled do not divide so few
        if not plans:
            continue
        plan = plans[0].plan
        step = step_of(model, here, plan, workload)
        per_gpu = float(step.tokens_per_s_per_gpu)
        answer = estimate_training(Question(model=model, cluster=here, workload=workload, plan=plan), **terms)
        first = found[0] if found else None
        found.append(
            ScalingPoint(
                gpus=gpus,
                plan=plan_words(plan),
                step_s=float(step.step_s),
                tokens_per_s=per_gpu * gpus,
                efficiency=1.0 if first is None else per_gpu * first.gpus / first.tokens_per_s,
                comm_fraction=float(step.communication_fraction),
                network_bytes_per_s=_needed(here, step),
                run=answer.training_run,
            )
        )
    return tuple(found)


def _counts(most: int) -> Iterator[int]:
    powers = [1 << at for at in range(most.bit_length()) if 1 << at <= most]
    yield from dict.fromkeys([*powers[-_MOST_POINTS:], most])


def _needed(cluster: Cluster, step: StepTime) -> float:
    """Bytes a second of the wire at which collectives take as long as the computing beside which they run."""
    moving_s = sum(float(step.lines.get(name, 0.0)) + float(step.hidden.get(name, 0.0)) for name in COMMUNICATION)
    computing_s = sum(float(seconds) for name, seconds in step.lines.items() if name not in _NOT_COMPUTING)
    return float(cluster.link_bytes_per_s(cluster.gpus)) * moving_s / computing_s if cluster.gpus > 1 else 0.0
