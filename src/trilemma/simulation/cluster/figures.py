"""Figures of a run that is over: waits, hours, shares, and the picture of space and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import TICKS
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.outcome import ClusterHours, PolicyOutcome, SpaceTime
from trilemma.simulation.cluster.runs import JobRun

#: Rows and columns of the picture.
_MOST_GROUPS, _SLICES = 40, 120
#: Queues that the picture tells apart.
_MOST_QUEUES = 5


def outcome_of(run: ClusterRun, name: str, wall_s: float) -> PolicyOutcome:
    """The figures of ``run``."""
    book, state = run.book, run.state
    hours = book.hours(WHOLE, TICKS)
    lost = {**hours["lost"], "down": hours["down"]}
    span = book.capacity * book.at_ticks
    forever = all(one.job.work_ticks is None for one in run.runs)
    now = (state.capacity_units - state.free_units - run.down_units) / state.capacity_units
    busy = book.useful + sum(book.lost.values())
    started = [one for one in run.runs if one.first_start is not None]
    done = [one for one in run.runs if one.finished is not None]
    return PolicyOutcome(
        name=name,
        nodes=len(state.nodes),
        gpus=state.capacity_units / WHOLE,
        completed=len(done),
        unstarted=len(run.runs) - len(started),
        preemptions=sum(one.preemptions for one in run.runs),
        moves=sum(one.moves for one in run.runs),
        seconds_simulated=book.at_ticks / TICKS,
        allocated_share=now if forever or not span else busy / span,
        useful_share=now if forever or not span else book.useful / span,
        mfu_share=book.weighed_mfu / span if book.weighed and span else None,
        worst_loss_s=max((one.worst_loss for one in run.runs), default=0) / TICKS,
        gpu_hours=ClusterHours(
            capacity=hours["capacity"],
            useful=hours["useful"],
            idle=hours["idle"] + hours["waiting"],
            fragmented=hours["fragmented"],
            lost=sum(lost.values()),
            of_idle={"nobody_waits": hours["idle"], "too_little_free": hours["waiting"]},
            of_lost=lost,
        ),
        waits_s=_waits(started),
        allocated_at_demand=_at_demand(run) if forever else {},
        completion_s=_summary([(one.finished or 0) - one.job.submit_ticks for one in done]),
        events=run.events,
        wall_s=wall_s,
    )


def wait_of(run: JobRun) -> int:
    """Ticks from submission to the first start."""
    assert run.first_start is not None
    return run.first_start - run.job.submit_ticks


def _waits(started: Sequence[JobRun]) -> dict[str, Any]:
    """Waits by gang size in GPUs and by queue, and of all."""
    groups: dict[str, list[int]] = defaultdict(list)
    sizes: dict[float, list[int]] = defaultdict(list)
    for one in started:
        wait = wait_of(one)
        groups["all"].append(wait)
        sizes[one.job.shape.total_gpus].append(wait)
        for group in (one.job.queue, one.job.kind):
            if group:
                groups[group].append(wait)
    shown: dict[str, list[int]] = {"all": groups.pop("all", [])}
    whole = {f"{size:g}": waits for size, waits in sorted(sizes.items()) if size >= 1}
    less = [wait for size, waits in sizes.items() if 0 < size < 1 for wait in waits]
    shown |= {"<1": less} if less else {}
    shown |= whole | dict(sorted(groups.items()))
    return {name: _summary(waits) for name, waits in shown.items() if waits}


def _summary(values: Sequence[int]) -> dict[str, Any]:
    """Mean and quantiles in seconds."""
    if not values:
        return {}
    seconds = np.array(values, dtype=np.float64) / TICKS
    p50, p90 = np.percentile(seconds, (50, 90))
    return {"mean": float(seconds.mean()), "p50": float(p50), "p90": float(p90), "jobs": len(values)}


def _at_demand(run: ClusterRun) -> dict[str, float]:
    """Allocated share of the cluster where the jobs that came ask for so many percent of it: the mean over those arrivals."""
    capacity = run.state.capacity_units
    asked = used = 0
    shares: dict[int, list[float]] = defaultdict(list)
    for one in run.runs:
        units = one.job.shape.units(run.state.of_cpus)
        asked += units
        used += units if one.first_start is not None else 0
        shares[round(100 * asked / capacity)].append(used / capacity)
    return {str(at): float(np.mean(found)) for at, found in sorted(shares.items()) if at and not at % 10}


def space_time(run: ClusterRun) -> SpaceTime:
    """Shares of the cards in use by groups of nodes (racks where there are any) over slices of time, and what waited."""
    state, end = run.state, max(run.book.at_ticks, 1)
    level = next((one for one in ("rack", "leaf", "nvlink", "block") if one in state.levels), "node")
    ids = state.domains[level]
    many = int(ids.max()) + 1
    if many > _MOST_GROUPS:
        ids, many = ids * _MOST_GROUPS // many, _MOST_GROUPS
    nodes = state.nodes
    labels = [""] * many
    for at, group in enumerate(ids.tolist()):
        labels[group] = labels[group] or (nodes[at].name if level == "node" else getattr(nodes[at], level))
    if len(set(labels)) < many:
        labels = [f"{label} ({at + 1})" for at, label in enumerate(labels)]
    capacity = np.bincount(ids, weights=[state.node_units(at) for at in range(len(nodes))], minlength=many)
    edges = np.linspace(0, end, _SLICES + 1)
    used = np.zeros((many, _SLICES))
    for one in run.runs:
        for begin, stop, placed in one.stretches:
            overlap = np.clip(np.minimum(edges[1:], stop) - np.maximum(edges[:-1], begin), 0, None)
            for pod in placed:
                used[ids[pod.node]] += overlap * (pod.cpu_milli if state.of_cpus else len(pod.cards) * pod.gpu_milli)
    shares = used / np.maximum(capacity[:, None] * np.diff(edges), 1e-9)
    hours = edges / TICKS / 3600
    rows = tuple(
        (labels[group], float(hours[at]), float(hours[at + 1]), float(min(shares[group, at], 1.0)))
        for group in range(many)
        for at in range(_SLICES)
    )
    return SpaceTime(groups=tuple(labels), rows=rows, waiting=_waiting(run, edges), queues=_by_queue(run, edges))


def _by_queue(run: ClusterRun, edges: Any) -> tuple[tuple[str, float, float, float], ...]:
    """GPUs that the jobs of the queues with most hours hold, and of all others, by slices of time."""
    held: dict[str, Any] = defaultdict(lambda: np.zeros(_SLICES))
    for one in run.runs:
        for begin, stop, placed in one.stretches:
            units = sum(pod.cpu_milli if run.state.of_cpus else len(pod.cards) * pod.gpu_milli for pod in placed)
            held[one.job.queue] += units * np.clip(np.minimum(edges[1:], stop) - np.maximum(edges[:-1], begin), 0, None)
    most = sorted((name for name in held if name), key=lambda name: -held[name].sum())
    if not most:
        return ()
    shown = {name: held[name] for name in most[:_MOST_QUEUES]}
    rest = [held[name] for name in held if name not in shown]
    shown |= {"others": sum(rest)} if rest else {}
    width, hours = np.maximum(np.diff(edges), 1e-9) * WHOLE, edges / TICKS / 3600
    return tuple(
        (name, float(hours[at]), float(hours[at + 1]), float(units[at] / width[at]))
        for name, units in shown.items()
        for at in range(_SLICES)
    )


def _waiting(run: ClusterRun, edges: Any) -> tuple[tuple[float, float, float], ...]:
    """(from hours, to hours, GPUs that jobs wait for) by slices of time."""
    asked = np.zeros(len(edges) - 1)
    for one in run.runs:
        until = run.book.at_ticks if one.first_start is None else one.first_start
        overlap = np.clip(np.minimum(edges[1:], until) - np.maximum(edges[:-1], one.job.submit_ticks), 0, None)
        asked += overlap * one.job.shape.units(run.state.of_cpus)
    hours = edges / TICKS / 3600
    mean = asked / np.maximum(np.diff(edges), 1e-9) / WHOLE
    return tuple((float(hours[at]), float(hours[at + 1]), float(mean[at])) for at in range(len(mean)))
