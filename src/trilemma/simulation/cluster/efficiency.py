"""Which jobs use their cards badly, and what nearer places would give back."""

from __future__ import annotations

from collections import defaultdict

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import TICKS
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.outcome import JobsEfficiency
from trilemma.simulation.cluster.runs import JobRun

#: GPU-hours below which a group is not worth a line, as a share of all that are weighed.
_LEAST_SHARE = 0.001


def efficiency_of(run: ClusterRun) -> tuple[JobsEfficiency, ...]:
    """Jobs that say what they train, and whose use of the cards is known, by that and by their size; those that a nearer place
    would give most back to first, then those that use the cards worst."""
    groups: dict[tuple[str, float], list[JobRun]] = defaultdict(list)
    for one in run.runs:
        job = one.job
        if job.training and one.useful_units and (one.mfu_units or job.training in run.rules.timings):
            groups[job.training, job.shape.total_gpus].append(one)
    weighed = sum(one.useful_units for every in groups.values() for one in every)
    found = [
        _group(run, what, gpus, every) for (what, gpus), every in groups.items()
        if sum(one.useful_units for one in every) >= _LEAST_SHARE * weighed
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.place_gain_gpu_hours, one.mfu or 1.0)))


def _group(run: ClusterRun, what: str, gpus: float, every: list[JobRun]) -> JobsEfficiency:
    useful = sum(one.useful_units for one in every)
    hours = WHOLE * TICKS * 3600
    mfu = sum(one.mfu_units for one in every)
    timing = run.rules.timings.get(what)
    near = None if timing is None else timing.nearest(int(gpus)).mfu
    return JobsEfficiency(
        training=what,
        gpus=gpus,
        jobs=len(every),
        gpu_hours=useful / hours,
        mfu=mfu / useful if mfu else None,
        nearest_mfu=near,
        place_gain_gpu_hours=sum(one.spread_units for one in every) / hours,
    )
