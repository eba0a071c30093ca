"""The best training plans of a cluster: every layout priced, ranked by the time of a step, with the Pareto front."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.search.pareto import pareto_front
from trilemma.search.training_layouts import TrainingConstraints
from trilemma.search.training_space import training_space
from trilemma.search.training_table import TrainingTable, best_of_each, order_of, training_table
from trilemma.workloads import TrainingWorkload

#: Steps of memory in which the front is told: finer differences between plans mean nothing.
_FRONT_STEP_BYTES = 2**30
_MOST_FRONT = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPlan:
    """One plan of a search with what it costs: seconds of a step, bytes of the worst rank, MFU; ``row`` of the table."""

    row: int
    plan: TrainingPlan
    step_s: float
    device_bytes: float
    mfu: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSearch:
    """Answer of `search_training`: ``plans`` best first (one for each cut of the model), then those of the front alone.

    ``best`` counts the ranked ones, ``pareto`` are indices into ``plans`` of the front of time against memory.
    ``searched`` were looked at, ``legal`` obey the rules, ``fitting`` fit; ``rejected`` counts the others by why.
    """

    plans: tuple[FoundPlan, ...]
    best: int
    pareto: tuple[int, ...]
    searched: int
    legal: int
    fitting: int
    seconds: float
    rejected: Mapping[str, int]
    table: TrainingTable
    capacity_bytes: float

    @property
    def faster_but_unsure(self) -> int:
        """Plans that are faster than the best and whose chance of fitting is below the bar of a recommendation."""
        if not self.plans or not self.table.sure[self.plans[0].row]:
            return 0
        return int(((self.table.step_s < self.plans[0].step_s) & ~self.table.sure).sum())


def search_training(
    model: Model,
    cluster: Cluster,
    workload: TrainingWorkload,
    *,
    settled: TrainingConstraints | None = None,
    top: int = 5,
) -> TrainingSearch:
    """Search all layouts of ``cluster`` for ``workload``; what ``settled`` fixes is not varied. Raises `InputError`."""
    started = time.perf_counter()
    settled = settled or TrainingConstraints()
    capacity = float(cluster.accelerator.runtime_total().value)
    space = training_space(model, cluster.accelerator, workload, gpus=cluster.gpus, settled=settled)
    table = training_table(model, cluster, workload, space, capacity_bytes=capacity)
    order = order_of(table)
    ranked = best_of_each(table, order, most=top)
    front = _front(table)
    every = [*ranked, *(at for at in front if at not in ranked)]
    return TrainingSearch(
        plans=tuple(found(table, at) for at in every),
        best=len(ranked),
        pareto=tuple(every.index(at) for at in front),
        searched=table.searched,
        legal=table.legal,
        fitting=len(table),
        seconds=time.perf_counter() - started,
        rejected=dict(table.rejected.most_common()),
        table=table,
        capacity_bytes=capacity,
    )


def found(table: TrainingTable, at: int) -> FoundPlan:
    """Row ``at`` of ``table`` as a plan with its figures."""
    return FoundPlan(
        row=at,
        plan=table.plan(at),
        step_s=float(table.step_s[at]),
        device_bytes=float(table.device_bytes[at]),
        mfu=float(table.mfu[at]),
    )


def _front(table: TrainingTable) -> list[int]:
    """Rows that no other beats in time and memory, memory in whole GiB, from the fastest on."""
    if not len(table):
        return []
    coarse = np.ceil(table.device_bytes / _FRONT_STEP_BYTES)
    # The fastest of each GiB is enough: a front of some dozen points out of as many.
    order = np.lexsort((table.step_s, coarse))
    first = np.flatnonzero(np.diff(coarse[order], prepend=-1.0))
    rows = order[first]
    points = np.stack([-table.step_s[rows], -coarse[rows]], axis=1)
    front = rows[pareto_front(points)]
    front = front[np.argsort(table.step_s[front])]
    if len(front) > _MOST_FRONT:
        front = front[np.unique(np.linspace(0, len(front) - 1, _MOST_FRONT).round().astype(int))]
    return [int(at) for at in front]
