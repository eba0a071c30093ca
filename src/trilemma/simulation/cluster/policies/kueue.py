"""Kueue: cohorts that lend and borrow, one head a queue in each cycle, preemption by quota that looks at the topology first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.placement import TightestPlacement
from trilemma.simulation.cluster.policies.lines import OpenLine, WaitingGroup
from trilemma.simulation.cluster.quotas import QuotaNode
from trilemma.simulation.cluster.runs import JobRun


class CohortLine(OpenLine):
    """Best-effort queues in cohorts. In a cycle the head of every queue is looked at: first those that do not borrow, then the
    higher priority, then the older (Kueue, pkg/scheduler/scheduler.go). A job within its queue's nominal quota takes back what
    others borrow, and a higher priority what its own queue gave to lower ones, as the queues state."""

    name: ClassVar[str] = "kueue"

    def __init__(self, desk: ClusterRun, placement: TightestPlacement, *, yields: bool = False) -> None:
        super().__init__(desk, placement, yields=True)
        self._everyone_yields = yields
        self._within_nominal = False

    def may_go(self, group: WaitingGroup) -> None:
        """Heads are looked for among all groups in each turn."""

    def schedule(self) -> None:
        if self.desk.state.freed:
            self.try_again()
        moved = False
        while heads := self.heads():
            for group in heads:
                if group.runs and not group.why:
                    self.tried(group)
            moved = True
            if self.desk.state.freed:
                self.try_again()
        if moved:
            self.stuck = self.stuck_units()

    def heads(self) -> list[WaitingGroup]:
        """The group of each queue's next job, in the order of a cycle."""
        first: dict[str, WaitingGroup] = {}
        for group in self.groups.values():
            if group.runs and not group.why:
                queue = group.key[0]
                if queue not in first or group.head.order < first[queue].head.order:
                    first[queue] = group
        return sorted(first.values(), key=lambda one: (_borrows(one.head), one.head.order))

    def victims(self, run: JobRun) -> Sequence[JobRun]:
        own, priority = run.quota, run.job.priority
        if own is None:
            return super().victims(run) if self._everyone_yields else ()
        rules = own.quota
        found = []
        reclaims = rules.reclaim != "never" and own.used < own.subtree
        root = _root(own)
        for one in self.desk.running.values():
            if not one.job.preemptible or one.quota is None:
                continue
            lower = one.job.priority < priority
            if one.quota is own:
                if lower and (rules.within == "lower-priority" or self._everyone_yields):
                    found.append(one)
            elif reclaims and one.quota.borrows and (rules.reclaim == "any" or lower) and _root(one.quota) is root:
                found.append(one)
        return sorted(found, key=lambda one: (one.quota is own, one.job.priority, -one.started))

    def fewest_leaving(self, run: JobRun, victims: Sequence[JobRun]) -> list[JobRun]:
        """What others borrow is taken back only for a queue that ends within its nominal quota; else its own jobs leave."""
        mine = [one for one in victims if one.quota is run.quota]
        if len(mine) < len(victims):
            self._within_nominal = True
            found = super().fewest_leaving(run, victims)
            self._within_nominal = False
            if found:
                return found
        return super().fewest_leaving(run, mine) if mine else []

    def goes(self, run: JobRun) -> bool:
        return not (self._within_nominal and _borrows(run)) and super().goes(run)

    def may_leave(self, run: JobRun, one: JobRun) -> bool:
        return one.quota is run.quota or (one.quota is not None and one.quota.borrows > 0)


def _borrows(run: JobRun) -> bool:
    """Whether its queue would have more than its nominal quota with ``run``."""
    node = run.quota
    return node is not None and node.used + run.units > node.subtree


def _root(node: QuotaNode) -> QuotaNode:
    while node.parent is not None:
        node = node.parent
    return node
