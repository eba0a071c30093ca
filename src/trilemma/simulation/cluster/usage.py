"""Who used the cluster: hours and waits by queue, hours by how jobs ended, and jobs that use their cards badly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import TICKS
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.outcome import EndUsage, IdleJob, QueueUsage
from trilemma.simulation.cluster.runs import JobRun

_HOURS = WHOLE * TICKS * 3600
#: Jobs alike that tell what is usual, the quantile that is held against a job, jobs shown, and queues.
_ALIKE, _QUANTILE, _MOST_JOBS, _MOST_QUEUES = 5, 0.75, 20, 200


def queue_usage(run: ClusterRun) -> tuple[QueueUsage, ...]:
    """Queues by the hours that they held, where jobs name any."""
    groups: dict[str, list[JobRun]] = defaultdict(list)
    for one in run.runs:
        groups[one.job.queue].append(one)
    if set(groups) == {""}:
        return ()
    whole = max(run.book.capacity * run.book.at_ticks, 1)
    found = [_queue(name or "no queue", every, whole) for name, every in groups.items()]
    return tuple(sorted(found, key=lambda one: -one.gpu_hours)[:_MOST_QUEUES])


def _queue(name: str, every: Sequence[JobRun], whole: int) -> QueueUsage:
    useful = sum(one.useful_units for one in every)
    told = [one for one in every if one.mfu is not None and one.useful_units]
    weighed = sum(one.useful_units for one in told)
    waits = [(one.first_start - one.job.submit_ticks) / TICKS for one in every if one.first_start is not None]
    return QueueUsage(
        queue=name,
        jobs=len(every),
        gpu_hours=useful / _HOURS,
        share=useful / whole,
        wait_p50_s=float(np.percentile(waits, 50)) if waits else None,
        wait_p90_s=float(np.percentile(waits, 90)) if waits else None,
        mfu=sum(one.mfu_units for one in told) / weighed if weighed else None,
    )


def end_usage(run: ClusterRun) -> tuple[EndUsage, ...]:
    """Hours by the state in which jobs were last seen, where their file tells it."""
    groups: dict[str, list[JobRun]] = defaultdict(list)
    for one in run.runs:
        if one.job.state:
            groups[one.job.state].append(one)
    whole = max(sum(one.useful_units for every in groups.values() for one in every), 1)
    found = [
        EndUsage(state=state, jobs=len(every), gpu_hours=sum(one.useful_units for one in every) / _HOURS,
                 share=sum(one.useful_units for one in every) / whole)
        for state, every in groups.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: -one.gpu_hours))


def idle_jobs(run: ClusterRun) -> tuple[IdleJob, ...]:
    """Jobs that use their cards less than three of four jobs of their size do, those that hold most hours so first."""
    sizes: dict[int, list[JobRun]] = defaultdict(list)
    for one in run.runs:
        if one.mfu is not None and one.useful_units:
            sizes[int(max(one.job.shape.total_gpus, 1)).bit_length()].append(one)
    found = []
    for every in sizes.values():
        if len(every) < _ALIKE:
            continue
        usual = float(np.quantile([one.mfu_units / one.useful_units for one in every], _QUANTILE))
        for one in every:
            use = one.mfu_units / one.useful_units
            if usual > 0 and use < usual:
                hours = one.useful_units / _HOURS
                found.append(
                    IdleJob(
                        job=one.job.name, user=one.job.user, queue=one.job.queue, gpus=one.job.shape.total_gpus, gpu_hours=hours,
                        mfu=use, usual_mfu=usual, gain_gpu_hours=hours * (1 - use / usual),
                    )
                )  # fmt: skip
    return tuple(sorted(found, key=lambda one: -one.gain_gpu_hours)[:_MOST_JOBS])
