"""HiveD: queues own cells of the topology; guaranteed jobs stay in them, opportunistic ones take what is free and leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import GangShape
from trilemma.simulation.cluster.placement import ChosenPlace, TightestPlacement
from trilemma.simulation.cluster.policies.lines import OpenLine
from trilemma.simulation.cluster.runs import JobRun
from trilemma.simulation.cluster.virtual_cells import CellQuota

Card = tuple[int, int]


class VirtualCell:
    """One cell of a queue: not bound, or bound to cards (node, card) of the cluster while guaranteed jobs run in it."""

    __slots__ = ("bound", "pinned", "quota", "runs")

    def __init__(self, quota: CellQuota, bound: frozenset[Card] | None) -> None:
        self.quota = quota
        self.bound = bound
        self.pinned = bound is not None
        self.runs: dict[int, frozenset[Card]] = {}


class CellLine(OpenLine):
    """Jobs of priority 0 and above run in their queue's cells alone, so that no queue breaks up another's; below 0 anywhere,
    until a cell is claimed (Zhao et al. 2020; microsoft/hivedscheduler, pkg/algorithm). A lazy job that has to leave its cell
    goes on as an opportunistic one where it stands."""

    name: ClassVar[str] = "hived"

    def __init__(self, desk: ClusterRun, placement: TightestPlacement, cells: Iterable[CellQuota]) -> None:
        super().__init__(desk, placement, yields=True)
        names = {one.name: at for at, one in enumerate(desk.state.nodes)}
        self.cells: dict[str, list[VirtualCell]] = {}
        for one in cells:
            bound = self._all_cards([names[one.pinned]]) if one.pinned else None
            self.cells.setdefault(one.queue, []).extend(VirtualCell(one, bound) for _ in range(one.count))

    def left(self, run: JobRun) -> None:
        run.downgraded = False
        self._leaves_cells(run)

    def attempt(self, run: JobRun) -> str:
        if run.job.priority < 0:
            found = self.fitting(run)
            if found is None:
                return "place"
            self.desk.start(run, found.place, found.shape)
            return ""
        yielding = (one for one in self.desk.running.values() if self._may_yield(run, one))
        lower = sorted(yielding, key=lambda one: (one.job.priority, -one.started))
        for many in range(len(lower) + 1):
            cards = self._in_cells(run, lower[:many])
            if cards is not None:
                self._claim(run, cards, lower[:many])
                return ""
        return "quota"

    def _may_yield(self, run: JobRun, one: JobRun) -> bool:
        return (
            one.job.queue == run.job.queue
            and 0 <= one.job.priority < run.job.priority
            and one.job.preemptible
            and not one.downgraded
        )

    def _in_cells(self, run: JobRun, leaving: Sequence[JobRun]) -> list[tuple[VirtualCell, list[Card]]] | None:
        """Cards for the pods of ``run`` in cells of its queue, ``leaving`` having left; None where they do not go."""
        gone = {one.at for one in leaving}
        shape, pods = run.job.shape, run.job.shape.pods
        room: list[tuple[int, int, VirtualCell, frozenset[Card]]] = []
        taken: set[Card] = set()
        for at, cell in enumerate(self._cells_of(run)):
            if cell.bound is not None and (cell.runs.keys() - gone or cell.pinned):
                free = cell.bound - {card for key, held in cell.runs.items() if key not in gone for card in held}
            else:
                fresh = self._physical(cell.quota, taken, leaving)
                if fresh is None:
                    continue
                free = fresh
                taken |= fresh
            fits = self._pods_in(free, shape)
            if fits:
                room.append((fits, at, cell, free))
        room.sort(key=lambda one: (one[0] < pods, one[0] if one[0] >= pods else -one[0], not one[2].runs, one[1]))
        found = []
        for fits, _, cell, free in room:
            many = min(fits, pods)
            found.append((cell, self._nearest(free, shape, many)))
            pods -= many
            if not pods:
                return found
        return None

    def _cells_of(self, run: JobRun) -> list[VirtualCell]:
        models, nodes = run.job.shape.models, self.desk.state.nodes
        chains = {one.block for one in nodes if not models or one.model in models}
        return [one for one in self.cells.get(run.job.queue, ()) if not one.pinned and one.quota.chain in chains]

    def _claim(self, run: JobRun, cells: list[tuple[VirtualCell, list[Card]]], leaving: Sequence[JobRun]) -> None:
        """Bind the cells, let who is in the way leave, start ``run``."""
        wanted = {card for _, cards in cells for card in cards}
        for one in leaving:
            self._leaves_cells(one)
            one.downgraded = True
        for one in list(self.desk.running.values()):
            held = {(pod.node, card) for pod in one.placed for card in pod.cards}
            if held & wanted or (one in leaving and not one.job.lazy):
                self.desk.stop(one, "preemption")
        pods: list[tuple[int, list[int]]] = []
        each = max(run.job.shape.gpus, 1)
        for cell, cards in cells:
            if cell.bound is None or not set(cards) <= cell.bound:
                cell.bound = self._around(cell.quota, cards)
            cell.runs[run.at] = frozenset(cards)
            pods += [(cards[at][0], [card for _, card in cards[at : at + each]]) for at in range(0, len(cards), each)]
        place = ChosenPlace([(node, 1) for node, _ in pods], tuple(card for _, cards in pods for card in cards))
        self.desk.start(run, place, run.job.shape)

    def _leaves_cells(self, run: JobRun) -> None:
        for cell in self.cells.get(run.job.queue, ()):
            if cell.runs.pop(run.at, None) is not None and not cell.runs and not cell.pinned:
                cell.bound = None

    def _physical(self, quota: CellQuota, taken: set[Card], leaving: Sequence[JobRun]) -> frozenset[Card] | None:
        """Cards of a physical cell that nobody is bound to: the one with the fewest opportunistic cards, then the first."""
        gone = {one.at for one in leaving}
        bound = {
            card for cells in self.cells.values() for cell in cells
            if cell.bound is not None and (cell.pinned or cell.runs.keys() - gone) for card in cell.bound
        } | taken  # fmt: skip
        best, fewest = None, -1
        for cards in self._candidates(quota):
            if cards & bound or any(not self.desk.state.up[node] for node, _ in cards):
                continue
            used = sum(self.desk.state.left[node, card] < 1000 for node, card in cards)
            if best is None or used < fewest:
                best, fewest = cards, used
        return best

    def _candidates(self, quota: CellQuota) -> Iterable[frozenset[Card]]:
        nodes = self.desk.state.nodes
        there = [at for at, one in enumerate(nodes) if one.block == quota.chain]
        if quota.nodes == 1:
            yield from (self._all_cards([at]) for at in there)
        elif quota.nodes:
            for rack in dict.fromkeys(nodes[at].rack for at in there):
                members = [at for at in there if nodes[at].rack == rack]
                for begin in range(0, len(members) - quota.nodes + 1, quota.nodes):
                    yield self._all_cards(members[begin : begin + quota.nodes])
        else:
            for at in there:
                for begin in range(0, nodes[at].gpus, quota.cards):
                    yield frozenset((at, card) for card in range(begin, begin + quota.cards))

    def _around(self, quota: CellQuota, cards: Sequence[Card]) -> frozenset[Card]:
        return next(one for one in self._candidates(quota) if set(cards) <= one)

    def _all_cards(self, nodes: Iterable[int]) -> frozenset[Card]:
        return frozenset((at, card) for at in nodes for card in range(self.desk.state.nodes[at].gpus))

    def _pods_in(self, free: frozenset[Card], shape: GangShape) -> int:
        counts: dict[int, int] = {}
        for node, _ in free:
            counts[node] = counts.get(node, 0) + 1
        return sum(many // max(shape.gpus, 1) for many in counts.values())

    def _nearest(self, free: frozenset[Card], shape: GangShape, pods: int) -> list[Card]:
        """Cards for ``pods``: on as few nodes as hold them, in groups of buddies, those that nobody uses first."""
        state, each = self.desk.state, max(shape.gpus, 1)
        by_node: dict[int, list[int]] = {}
        for node, card in sorted(free):
            by_node.setdefault(node, []).append(card)
        chosen: list[Card] = []
        wanted = pods * each
        for node in sorted(by_node, key=_fewest_first(by_node, wanted)):
            many = min(len(by_node[node]) // each * each, wanted - len(chosen))
            group = state.nodes[node].buddies or 1
            used = {card: int(state.left[node, card] < 1000) for card in by_node[node]}
            groups: dict[int, list[int]] = {}
            for card in by_node[node]:
                groups.setdefault(card // group, []).append(card)
            holding = [cards for cards in groups.values() if len(cards) >= many]
            order = (
                min(holding, key=lambda one: (len(one), sum(used[card] for card in one)), default=None)
                if many
                else None
            )
            cards = order or [card for one in sorted(groups.values(), key=len, reverse=True) for card in one]
            chosen += [(node, card) for card in cards[:many]]
            if len(chosen) == wanted:
                break
        return chosen


def _fewest_first(by_node: dict[int, list[int]], wanted: int) -> Callable[[int], tuple[bool, int, int]]:
    """Nodes that hold all, the tightest first; else those with the most."""

    def key(node: int) -> tuple[bool, int, int]:
        many = len(by_node[node])
        return many < wanted, many if many >= wanted else -many, node

    return key
