"""KAI: what queues deserve first, then what is left by weight; the queue furthest below its fair share is next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.placement import TightestPlacement
from trilemma.simulation.cluster.policies.lines import OpenLine, WaitingGroup
from trilemma.simulation.cluster.quotas import QuotaNode
from trilemma.simulation.cluster.runs import JobRun


class FairShareLine(OpenLine):
    """Queues share by need: deserved quota, then the rest by over-quota weight (NVIDIA/KAI-Scheduler, docs/queues and
    docs/fairness). A queue below its fair share reclaims from those above theirs; in a queue a higher priority comes first and
    may throw out a lower one."""

    name: ClassVar[str] = "kai"

    def __init__(self, desk: ClusterRun, placement: TightestPlacement, *, yields: bool = False) -> None:  # noqa: ARG002 - it always does
        super().__init__(desk, placement, yields=True)
        self._asked: dict[str, int] = {}
        self._shares: dict[int, float] = {}

    def arrive(self, run: JobRun) -> None:
        super().arrive(run)
        self._asked[run.job.queue] = self._asked.get(run.job.queue, 0) + run.units

    def may_go(self, group: WaitingGroup) -> None:
        """Heads are looked for among all groups in each turn."""

    def schedule(self) -> None:
        if self.desk.state.freed:
            self.try_again()
        self._shares = self._fair_shares()
        moved = False
        while (group := self._next()) is not None:
            run, before = group.head, group.head.units
            if self.tried(group):
                self._asked[run.job.queue] -= before
            moved = True
            if self.desk.state.freed:
                self.try_again()
        if moved:
            self.stuck = self.stuck_units()

    def allowed(self, run: JobRun) -> bool:
        """Limits alone bound a queue: nominal and borrowing together, where borrowing is stated."""
        node = run.quota
        while node is not None:
            limit = node.quota.borrowing
            if limit is not None and self._used(node) + run.units > node.subtree + limit:
                return False
            node = node.parent
        return True

    def victims(self, run: JobRun) -> Sequence[JobRun]:
        own, found = run.quota, []
        below = own is not None and self._used(own) + run.units <= self._shares.get(id(own), 0.0)
        for one in self.desk.running.values():
            if not one.job.preemptible:
                continue
            if one.quota is own:
                if one.job.priority < run.job.priority:
                    found.append(one)
            elif below and one.quota is not None and self._above(one.quota):
                found.append(one)
        return sorted(found, key=lambda one: (one.job.priority, -one.started))

    def may_leave(self, run: JobRun, one: JobRun) -> bool:
        return one.quota is run.quota or (one.quota is not None and self._above(one.quota))

    def _above(self, node: QuotaNode) -> bool:
        return self._used(node) > self._shares.get(id(node), 0.0)

    def _used(self, node: QuotaNode) -> int:
        """Units of all queues below: lending does not matter here."""
        return node.used if not node.children else sum(self._used(one) for one in node.children)

    def _next(self) -> WaitingGroup | None:
        """The next job of the queue that has the least of its fair share."""
        ready = [group for group in self.groups.values() if group.runs and not group.why]
        return min(ready, key=self._turn, default=None)

    def _turn(self, group: WaitingGroup) -> tuple[float, tuple[int, int, int]]:
        node = group.head.quota
        if node is None:
            return 0.0, group.head.order
        share = self._shares.get(id(node), 0.0)
        return (self._used(node) / share if share else float("inf")), group.head.order

    def _fair_shares(self) -> dict[int, float]:
        """Fair shares in units, by node of the tree, divided from the top."""
        tree = self.desk.quotas
        found: dict[int, float] = {}
        tops = [node for node in tree.nodes.values() if node.parent is None]
        self._divide(tops, float(self.desk.state.capacity_units), found)
        return found

    def _divide(self, nodes: Sequence[QuotaNode], amount: float, found: dict[int, float]) -> None:
        """What is deserved, as far as it is asked for, then the rest by weight among those that ask for more."""
        asks = {id(node): float(self._asks(node)) for node in nodes}
        share = {id(node): min(asks[id(node)], float(node.subtree)) for node in nodes}
        rest = amount - sum(share.values())
        hungry = [node for node in nodes if asks[id(node)] > share[id(node)] and node.quota.weight > 0]
        while hungry and rest > 1e-6:
            weight = sum(node.quota.weight for node in hungry)
            part = rest / weight
            given = 0.0
            for node in hungry:
                more = min(part * node.quota.weight, asks[id(node)] - share[id(node)])
                share[id(node)] += more
                given += more
            hungry = [node for node in hungry if asks[id(node)] > share[id(node)] + 1e-6]
            rest -= given
            if given <= 1e-6:
                break
        found |= share
        for node in nodes:
            if node.children:
                self._divide(node.children, share[id(node)], found)

    def _asks(self, node: QuotaNode) -> int:
        if node.children:
            return sum(self._asks(one) for one in node.children)
        return node.used + self._asked.get(node.quota.name, 0)
