"""Where the pods of a gang go: the smallest domain of the topology that holds them, filled tightly."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.simulation.cluster.jobs import GangShape
from trilemma.simulation.cluster.state import ClusterState, Counts

#: Pods on nodes: (node, pods) of each.
Chosen = list[tuple[int, int]]


def tightest_gang(state: ClusterState, shape: GangShape, counts: Counts, *, fill_gaps: bool = False) -> Chosen | None:
    """Nodes for all pods of ``shape``, of ``counts`` (nodes,) pods that each takes; None where it does not go.

    The smallest level with a domain that holds the gang, its tightest domain, and in it the domains with the most room first,
    the last one the tightest that holds the rest (Kueue's BestFit). ``fill_gaps``: the least room first, whatever the distance
    (Kueue's LeastFreeCapacity for gangs without a topology).
    """
    if int(counts.sum()) < shape.pods:
        return None
    if shape.within and shape.slice_pods and shape.slice_pods < shape.pods:
        return _in_slices(state, shape, counts)
    if fill_gaps and not shape.within:
        return _least_first(counts, shape.pods)
    for level in _levels(state, shape):
        room = _room(state, level, counts)
        holding = np.flatnonzero(room >= shape.pods)
        if len(holding):
            domain = int(holding[room[holding].argmin()])
            return _fill(state, shape.pods, np.where(state.domains[level] == domain, counts, 0), _finer(state, level))
    if shape.strict:
        return None
    return _fill(state, shape.pods, counts, (*reversed(state.levels), "node"))


def holds_ever(state: ClusterState, shape: GangShape) -> bool:
    """Whether ``shape`` goes on the cluster when it is idle."""
    return tightest_gang(state, shape, state.could_fit(shape)) is not None


def _levels(state: ClusterState, shape: GangShape) -> tuple[str, ...]:
    """Levels to look for one domain at, the smallest first: up to the one that is asked for where that is strict."""
    every = ("node", *state.levels)
    if not shape.within or not shape.strict:
        return every
    return every[: every.index(shape.within) + 1] if shape.within in every else ("node",)


def _finer(state: ClusterState, level: str) -> tuple[str, ...]:
    """Levels below ``level``, the coarsest first."""
    every = ("node", *state.levels)
    return tuple(reversed(every[: every.index(level)]))


def _room(state: ClusterState, level: str, counts: Counts) -> Any:
    return (
        counts if level == "node" else np.bincount(state.domains[level], weights=counts, minlength=state.sizes[level])
    )


def _fill(state: ClusterState, pods: int, counts: Counts, levels: tuple[str, ...]) -> Chosen:
    """``pods`` in as few domains of each level as hold them: most room first, the last the tightest."""
    if not levels:
        (nodes,) = np.nonzero(counts)
        return [(int(nodes[0]), pods)]
    level, below = levels[0], levels[1:]
    room = _room(state, level, counts)
    there = np.flatnonzero(room)
    order = there[np.argsort(-room[there], kind="stable")]
    chosen: Chosen = []
    for at, domain in enumerate(order):
        left = order[at:]
        enough = left[room[left] >= pods]
        picked = int(enough[room[enough].argmin()]) if len(enough) else int(domain)
        many = min(pods, int(room[picked]))
        if level == "node":
            chosen.append((picked, many))
        else:
            chosen += _fill(state, many, np.where(state.domains[level] == picked, counts, 0), below)
        pods -= many
        if not pods:
            break
    return chosen


def _least_first(counts: Counts, pods: int) -> Chosen:
    there = np.flatnonzero(counts)
    chosen: Chosen = []
    for node in there[np.argsort(counts[there], kind="stable")]:
        many = min(pods, int(counts[node]))
        chosen.append((int(node), many))
        pods -= many
        if not pods:
            break
    return chosen


def _in_slices(state: ClusterState, shape: GangShape, counts: Counts) -> Chosen | None:
    """Each ``slice_pods`` of the gang within one domain of its level, in as few domains as hold them."""
    level, size = shape.within, shape.slice_pods
    if level not in state.domains:
        return None
    slices = (_room(state, level, counts) // size).astype(np.int64)
    wanted = -(-shape.pods // size)
    if int(slices.sum()) < wanted:
        return None
    order = np.argsort(-slices, kind="stable")
    chosen: Chosen = []
    left = shape.pods
    for at, domain in enumerate(order):
        rest = order[at:]
        enough = rest[slices[rest] * size >= left]
        picked = int(enough[slices[enough].argmin()]) if len(enough) else int(domain)
        many = min(left, int(slices[picked]) * size)
        chosen += _fill(state, many, np.where(state.domains[level] == picked, counts, 0), _finer(state, level))
        left -= many
        if not left:
            break
    return chosen
