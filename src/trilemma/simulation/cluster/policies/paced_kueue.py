"""Kueue as fast as its control plane: writes within a budget, cycles that wait for them, batches of what may fit again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import TICKS
from trilemma.simulation.cluster.placement import TightestPlacement
from trilemma.simulation.cluster.policies.kueue import CohortLine
from trilemma.simulation.cluster.policies.lines import WaitingGroup
from trilemma.simulation.cluster.quotas import QuotaNode
from trilemma.simulation.cluster.runs import JobRun


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlPlane:
    """Writes a second and at once of the client (controller configuration, clientConnection: 50 and 100), and seconds after which
    what did not fit is looked at again (pkg/cache/queue/inadmissible_workloads.go, requeueBatchPeriod)."""

    writes_per_s: float = 50.0
    burst: int = 100
    requeue_s: float = 1.0
    cycle_s: float = 0.001


class WriteBudget:
    """A token bucket: when the next write goes out."""

    def __init__(self, plane: ControlPlane) -> None:
        self._each = round(TICKS / plane.writes_per_s)
        self._ahead = self._each * plane.burst
        self._due = 0

    def take(self, now: int) -> int:
        """The tick at which a write asked for at ``now`` is done."""
        self._due = max(self._due, now) + self._each
        return max(now, self._due - self._ahead)


class PacedCohortLine(CohortLine):
    """`CohortLine` under a control plane. Admissions hold their quota at once and begin when their write is done; the status of a
    head that does not fit is written before the next cycle; what was thrown out leaves when its write is done."""

    name: ClassVar[str] = "kueue-paced"

    def __init__(
        self, desk: ClusterRun, placement: TightestPlacement, plane: ControlPlane, *, yields: bool = False
    ) -> None:
        super().__init__(desk, placement, yields=yields)
        self.plane = plane
        self.writes = WriteBudget(plane)
        self._busy_until = 0
        self._waking = -1
        self._requeue_at: dict[int, int] = {}
        self._leaving: dict[int, tuple[int, JobRun]] = {}
        self._preemptors: dict[str, tuple[WaitingGroup, set[int]]] = {}

    def left(self, run: JobRun) -> None:
        """What waits in the cohort may fit again after the next batch."""
        root = id(_cohort(run.quota))
        self._requeue_at.setdefault(root, self.desk.now + round(self.plane.requeue_s * TICKS))

    def try_again(self) -> None:
        """Only batches bring back what did not fit."""
        self.desk.state.freed.clear()

    def schedule(self) -> None:
        now = self.desk.now
        self.desk.state.freed.clear()
        for run in [run for at, run in self._leaving.values() if at <= now]:
            del self._leaving[run.at]
            if run.running:
                self.desk.stop(run, "preemption")
        for queue, (group, victims) in list(self._preemptors.items()):
            if not victims & self._leaving.keys():
                group.why = ""
                if not group.runs:
                    del self._preemptors[queue]
        due = {root for root, at in self._requeue_at.items() if at <= now}
        if due:
            for root in due:
                del self._requeue_at[root]
            for group in self.groups.values():
                if group.why and group.runs and id(_cohort(group.head.quota)) in due:
                    group.why = ""
        if now >= self._busy_until:
            self._cycle(now)
        self._wake_next(now)
        self.stuck = 0

    def heads(self) -> list[WaitingGroup]:
        """As in any cycle; a job that others leave for stays the head of its queue until it is in."""
        found = []
        for group in super().heads():
            held = self._preemptors.get(group.key[0])
            if held is None:
                found.append(group)
            elif not held[0].why:
                found.append(held[0])
        return found

    def _cycle(self, now: int) -> None:
        heads = self.heads()
        if not heads:
            return
        done = now
        for group in heads:
            if group.runs and not group.why:
                self.tried(group)
                if self.groups[group.key].why == "quota":
                    done = max(done, self.writes.take(now))
        self._busy_until = done + round(self.plane.cycle_s * TICKS)

    def attempt(self, run: JobRun) -> str:
        found = self.fitting(run) if self.allowed(run) else None
        if found is not None:
            delay = self.writes.take(self.desk.now) - self.desk.now
            self.desk.start(run, found.place, found.shape, delay)
            self._preemptors.pop(run.job.queue, None)
            return ""
        leaving = self.fewest_leaving(run, [one for one in self.victims(run) if one.at not in self._leaving])
        for one in leaving:
            self._leaving[one.at] = self.writes.take(self.desk.now), one
        if not leaving:
            return "quota"
        group = self.groups[run.job.queue, run.job.priority, run.form]
        self._preemptors[run.job.queue] = group, {one.at for one in leaving}
        return "preempts"

    def _wake_next(self, now: int) -> None:
        times = [at for at, _ in self._leaving.values()]
        times += self._requeue_at.values()
        if self.heads():
            times.append(self._busy_until)
        nexts = min((max(at, now + 1) for at in times), default=-1)
        if nexts >= 0 and not now < self._waking <= nexts:
            self._waking = nexts
            self.desk.wake(nexts)


def _cohort(node: QuotaNode | None) -> QuotaNode | None:
    while node is not None and node.parent is not None:
        node = node.parent
    return node
