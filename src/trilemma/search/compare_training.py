"""One training job on several kinds of GPU: the best plan of each, as a search of that card alone finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.training import estimate_training
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.question import Question
from trilemma.search.training import search_training
from trilemma.search.training_layouts import TrainingConstraints
from trilemma.search.training_questions import least_gpus
from trilemma.workloads import TrainingWorkload

#: How many GPUs are looked at where those given do not hold the job.
_MOST_GPUS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCandidate:
    """One kind of GPU: its best plan in full; None where nothing fits, with ``least_gpus`` of such cards that do (None: none
    of those looked at), or why no plan is legal (``refused``)."""

    cluster: Cluster
    best: Estimate | None
    least_gpus: int | None = None
    refused: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingComparison:
    """Candidates in the order given, for one job."""

    model: Model
    workload: TrainingWorkload
    candidates: tuple[TrainingCandidate, ...]


def training_candidate(
    model: Model,
    cluster: Cluster,
    workload: TrainingWorkload,
    settled: TrainingConstraints,
    terms: Mapping[str, Any] | None = None,
) -> TrainingCandidate:
    """The first plan of `search_training` on ``cluster``, estimated as that search's own is; ``terms`` are the failures and
    checkpoints of a run, as keywords of an estimate."""
    try:
        found = search_training(model, cluster, workload, settled=settled, top=1)
    except InputError as error:
        return TrainingCandidate(cluster=cluster, best=None, refused=error.flags)
    if found.best:
        plan = found.plans[0].plan
        best = estimate_training(Question(model=model, cluster=cluster, workload=workload, plan=plan), **(terms or {}))
        return TrainingCandidate(cluster=cluster, best=best)
    usual = cluster.accelerator.gpus_per_node
    least = least_gpus(model, replace(cluster, gpus=_MOST_GPUS, gpus_per_node=usual), workload, settled)
    return TrainingCandidate(cluster=cluster, best=None, least_gpus=None if least is None else least.gpus)
