"""The cluster at one instant: what is free on every card, node and domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trilemma.simulation.cluster.jobs import GangShape
from trilemma.simulation.cluster.mig import room_of, start_of
from trilemma.simulation.cluster.nodes import WHOLE, ClusterNode, levels_of

Counts = NDArray[np.int64]
_ALL = slice(None)


class PlacedPod(NamedTuple):
    """Pods of one job on one node: the cards they hold, thousandths of each, CPU and memory; the ``slices`` of its card, a bit
    each, where it holds an instance of one."""

    node: int
    cards: tuple[int, ...]
    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    slices: int = 0


class ClusterState:
    """What is free. ``left`` (nodes, cards) in thousandths, ``whole`` cards wholly free, ``free_units`` in all; ``sliced``
    (nodes, cards) are the memory slices that ``instances`` of cards take, a bit each.

    A node that is down offers nothing; ``versions`` say when a node changed last, ``freed`` which nodes gave something back.
    """

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self.nodes = tuple(nodes)
        many, most = len(nodes), max((one.gpus for one in nodes), default=0)
        self.gpus = np.array([one.gpus for one in nodes], dtype=np.int64)
        self.left = np.zeros((many, max(most, 1)), dtype=np.int64)
        for at, one in enumerate(nodes):
            self.left[at, : one.gpus] = WHOLE
        self.whole = self.gpus.copy()
        self.total = self.gpus * WHOLE
        self.cpu = np.array([one.cpu_milli for one in nodes], dtype=np.int64)
        self.memory = np.array([one.memory_mib for one in nodes], dtype=np.int64)
        self.up = np.ones(many, dtype=bool)
        self.down = 0
        self.of_cpus = not self.gpus.any()
        self.capacity_units = int((self.cpu if self.of_cpus else self.total).sum())
        self.free_units = self.capacity_units
        self.versions = np.zeros(many, dtype=np.int64)
        self.clock = 0
        self.freed: set[int] = set()
        self.levels = levels_of(nodes)
        self.domains = {level: _numbered(one.domain(level) for one in nodes) for level in self.levels}
        self.domains["node"] = np.arange(many)
        self.sizes = {level: int(ids.max(initial=-1)) + 1 for level, ids in self.domains.items()}
        self.sliced = np.zeros_like(self.left)
        self.instances = 0
        self._sockets = np.array([one.sockets if one.one_socket else 1 for one in nodes])
        self._one_socket = np.flatnonzero(self._sockets > 1)
        self._models: dict[tuple[str, ...], NDArray[np.bool_]] = {}
        self._ever: dict[GangShape, Counts] = {}

    def fits(self, shape: GangShape) -> Counts:
        """Pods of ``shape`` that each node could take now (nodes,)."""
        if shape.gpus == 0:
            counts = np.full(len(self.nodes), shape.pods, dtype=np.int64)
        elif shape.slices:
            counts = self._room_for_instances(shape).sum(axis=1)
        elif shape.gpu_milli < WHOLE:
            counts = (self.shared_left() // shape.gpu_milli).sum(axis=1)
        else:
            counts = self.whole // shape.gpus if shape.gpus > 1 else self.whole.copy()
        for at in self._one_socket if shape.gpus > 1 else ():
            counts[at] = sum(len(cards) // shape.gpus for cards in self._free_by_socket(int(at)))
        if shape.cpu_milli:
            np.minimum(counts, self.cpu // shape.cpu_milli, out=counts)
        if shape.memory_mib:
            np.minimum(counts, self.memory // shape.memory_mib, out=counts)
        if shape.models:
            counts *= self._having(shape.models)
        if self.down:
            counts *= self.up
        return counts

    def could_fit(self, shape: GangShape) -> Counts:
        """Pods of ``shape`` that each node could take if all were idle (nodes,)."""
        found = self._ever.get(shape)
        if found is None:
            found = self._ever[shape] = ClusterState(self.nodes).fits(shape)
        return found

    def take(
        self, shape: GangShape, chosen: Iterable[tuple[int, int]], cards: Sequence[int] | None = None
    ) -> tuple[PlacedPod, ...]:
        """Put ``chosen`` (node, pods) of ``shape`` there; ``cards`` of all pods in turn where the caller chose them."""
        placed, rest = [], iter(cards or ())
        for node, pods in chosen:
            for _ in range(pods):
                chosen_for_it = cards is None or bool(shape.slices)
                held = self._cards(node, shape) if chosen_for_it else tuple(islice(rest, shape.gpus))
                bits = self._slices(node, held[0], shape) if shape.slices else 0
                one = PlacedPod(node, held, shape.gpu_milli, shape.cpu_milli, shape.memory_mib, bits)
                self._move(one, -1)
                placed.append(one)
        return tuple(placed)

    def retake(self, placed: Iterable[PlacedPod]) -> None:
        """Put back exactly what was given back."""
        for one in placed:
            self._move(one, -1)

    def give_back(self, placed: Iterable[PlacedPod]) -> None:
        for one in placed:
            self._move(one, 1)
            self.freed.add(one.node)

    def fail(self, node: int) -> None:
        """Take an empty node out."""
        self.up[node] = False
        self.down += 1
        self.free_units -= self.node_units(node)
        self._touch(node)

    def repair(self, node: int) -> None:
        self.up[node] = True
        self.down -= 1
        self.free_units += self.node_units(node)
        self.freed.add(node)
        self._touch(node)

    def node_units(self, node: int) -> int:
        one = self.nodes[node]
        return one.cpu_milli if self.of_cpus else one.gpu_milli

    def span(self, placed: Sequence[PlacedPod]) -> str:
        """The smallest level that holds all of ``placed``: "node", a level of the topology, else "cluster"."""
        where = [one.node for one in placed]
        first = where[0]
        if all(one == first for one in where):
            return "node"
        for level in self.levels:
            ids = self.domains[level]
            if all(ids[one] == ids[first] for one in where):
                return level
        return "cluster"

    def _cards(self, node: int, shape: GangShape) -> tuple[int, ...]:
        if shape.gpus == 0:
            return ()
        if shape.slices:
            fitting = np.flatnonzero(self._room_for_instances(shape, node))
            return (int(fitting[self.left[node][fitting].argmin()]),)
        row = self.shared_left(node) if shape.gpu_milli < WHOLE else self.left[node]
        if shape.gpu_milli < WHOLE:
            fitting = np.flatnonzero(row >= shape.gpu_milli)
            return (int(fitting[row[fitting].argmin()]),)
        if self._sockets[node] > 1:
            groups = [cards for cards in self._free_by_socket(node) if len(cards) >= shape.gpus]
            return tuple(min(groups, key=len)[: shape.gpus])
        return tuple(np.flatnonzero(row == WHOLE)[: shape.gpus].tolist())

    def _room_for_instances(self, shape: GangShape, node: int | slice = _ALL) -> Counts:
        """Instances that each card takes more of: cards that are shared otherwise take none."""
        sliced = self.sliced[node]
        unshared = (sliced > 0) | (self.left[node] == WHOLE)
        room: Counts = room_of(shape.slices, shape.slice_starts)[sliced] * unshared
        return room

    def shared_left(self, node: Any = _ALL) -> Counts:
        """Thousandths that are free for pods that share cards without slices."""
        left: Counts = self.left[node]
        return np.where(self.sliced[node] > 0, 0, left) if self.instances else left

    def _slices(self, node: int, card: int, shape: GangShape) -> int:
        start = int(start_of(shape.slices, shape.slice_starts)[self.sliced[node, card]])
        return int(2**shape.slices - 1) << start

    def _free_by_socket(self, node: int) -> list[list[int]]:
        sockets, gpus = int(self._sockets[node]), int(self.gpus[node])
        each, row = gpus // sockets, self.left[node]
        return [[card for card in range(one * each, (one + 1) * each) if row[card] == WHOLE] for one in range(sockets)]

    def _move(self, one: PlacedPod, sign: int) -> None:
        row, amount = self.left[one.node], sign * one.gpu_milli
        for card in one.cards:
            before = row[card]
            after = before + amount
            row[card] = after
            self.whole[one.node] += int(after == WHOLE) - int(before == WHOLE)
        if one.slices:
            self.sliced[one.node, one.cards[0]] ^= one.slices
            self.instances -= sign
        units = len(one.cards) * amount
        self.total[one.node] += units
        self.cpu[one.node] += sign * one.cpu_milli
        self.memory[one.node] += sign * one.memory_mib
        if self.up[one.node]:
            self.free_units += sign * one.cpu_milli if self.of_cpus else units
        self._touch(one.node)

    def _touch(self, node: int) -> None:
        self.clock += 1
        self.versions[node] = self.clock

    def _having(self, models: tuple[str, ...]) -> NDArray[np.bool_]:
        if models not in self._models:
            self._models[models] = np.array([one.model in models for one in self.nodes])
        return self._models[models]


def _numbered(names: Iterable[Any]) -> NDArray[np.int64]:
    known: dict[Any, int] = {}
    return np.array([known.setdefault(one, len(known)) for one in names], dtype=np.int64)
