"""Which node and which cards: one class a rule. A rule picks for one pod; gangs go where `gangs` says."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from trilemma.errors import InputError
from trilemma.simulation.cluster.gangs import Chosen, tightest_gang
from trilemma.simulation.cluster.jobs import GangShape
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.state import ClusterState, Counts

#: The highest score that a rule of Kubernetes' scheduler gives a node: scores are whole numbers up to it.
_HIGHEST = 100


class ChosenPlace(NamedTuple):
    """Nodes with the pods that each takes, and the cards of all pods in turn where the rule chooses them."""

    nodes: Chosen
    cards: tuple[int, ...] | None = None


class TightestPlacement:
    """The node with the least room left; a gang in the smallest domain of the topology that holds it."""

    name: ClassVar[str] = "tightest"

    def __init__(self, state: ClusterState, shapes: Any, seed: int = 0) -> None:  # noqa: ARG002 - some rules ask for them
        self.state = state
        self.random = np.random.default_rng(seed)
        self._order = self.random.permutation(len(state.nodes))

    def choose(self, shape: GangShape) -> ChosenPlace | None:
        """A place for ``shape`` now; None where there is none."""
        counts = self.state.fits(shape)
        if shape.pods > 1:
            found = self.gang(shape, counts)
            return None if found is None else ChosenPlace(found)
        there = np.flatnonzero(counts)
        if not len(there):
            return None
        return self.one(shape, there)

    def gang(self, shape: GangShape, counts: Counts) -> Chosen | None:
        return tightest_gang(self.state, shape, counts)

    def one(self, shape: GangShape, there: Any) -> ChosenPlace:  # noqa: ARG002 - other rules ask for it
        """Of the nodes ``there`` that take the pod."""
        room = self.state.cpu if self.state.of_cpus else self.state.total
        return ChosenPlace([(int(there[room[there].argmin()]), 1)])

    def first_best(self, there: Any, scores: Any) -> int:
        """Of the nodes with the highest score the first of a list that is drawn once, as a scheduler's cache lists its nodes."""
        best = there[scores == scores.max()]
        return int(best[self._order[best].argmin()])


class GapPlacement(TightestPlacement):
    """The least room first, for gangs too: what is left stays whole (Kueue's LeastFreeCapacity)."""

    name: ClassVar[str] = "least-free"

    def gang(self, shape: GangShape, counts: Counts) -> Chosen | None:
        return tightest_gang(self.state, shape, counts, fill_gaps=True)


class RandomPlacement(TightestPlacement):
    """Any node that takes it, any card of it."""

    name: ClassVar[str] = "random"

    def one(self, shape: GangShape, there: Any) -> ChosenPlace:
        node = int(there[self.random.integers(len(there))])
        if shape.gpus == 1 and shape.gpu_milli < WHOLE and not shape.slices:
            cards = np.flatnonzero(self.state.shared_left(node) >= shape.gpu_milli)
            return ChosenPlace([(node, 1)], (int(cards[self.random.integers(len(cards))]),))
        return ChosenPlace([(node, 1)])


class BestFitPlacement(TightestPlacement):
    """The least CPU and cards left after it, each as a share of the largest node's (Weng et al. 2023, baseline BestFit)."""

    name: ClassVar[str] = "best-fit"

    def __init__(self, state: ClusterState, shapes: Any, seed: int = 0) -> None:
        super().__init__(state, shapes, seed)
        self._largest = max(int(state.cpu.max()), 1), max(int(state.gpus.max()) * WHOLE, 1)

    def one(self, shape: GangShape, there: Any) -> ChosenPlace:
        cpu, gpu = self._largest
        left = 0.5 * (self.state.cpu[there] - shape.cpu_milli) / cpu
        left = left + 0.5 * (self.state.total[there] - shape.gpus * shape.gpu_milli) / gpu
        scores = ((1.0 - left) * _HIGHEST).astype(np.int64)
        spread = scores.max() - scores.min()
        scores = (scores - scores.min()) * _HIGHEST // spread if spread else scores * 0
        return ChosenPlace([(self.first_best(there, scores), 1)])


class PackingPlacement(TightestPlacement):
    """Cards in use first, then free cards of nodes in use, then idle nodes (Weng et al. 2023, baseline GpuPacking)."""

    name: ClassVar[str] = "packing"

    def one(self, shape: GangShape, there: Any) -> ChosenPlace:
        state = self.state
        if shape.gpus == 0:
            return ChosenPlace([(self.first_best(there, np.zeros(len(there))), 1)])
        free = state.whole[there]
        idle_score = np.maximum(_HIGHEST // 3 - free, free)
        row = state.shared_left(there)
        if shape.gpu_milli < WHOLE:
            fitting = np.where(row >= shape.gpu_milli, row, WHOLE + 1)
            tightest = fitting.min(axis=1)
            shared = np.maximum(_HIGHEST - tightest * 100 // WHOLE // 10, _HIGHEST // 2)
            score = np.where(tightest < WHOLE, shared, max(_HIGHEST // 2 - 1, _HIGHEST // 3))
        else:
            score = np.full(len(there), max(_HIGHEST // 2 - shape.gpus, _HIGHEST // 3))
        return ChosenPlace([(self.first_best(there, np.where(free == state.gpus[there], idle_score, score)), 1)])


def placement_of(name: str) -> type[TightestPlacement]:
    """The rule of a name. Raises `InputError` where there is none."""
    from trilemma.simulation.cluster.fragmentation import GradientPlacement

    rules = (TightestPlacement, GapPlacement, RandomPlacement, BestFitPlacement, PackingPlacement, GradientPlacement)
    known: dict[str, type[TightestPlacement]] = {one.name: one for one in rules}
    if name not in known:
        raise InputError(f"`placement` {name!r} is not known; use {', '.join(known)}")
    return known[name]
