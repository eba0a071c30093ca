"""The line of one queue, and the try to start a job: what every policy does, whatever its order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import ClassVar

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import GangShape
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.placement import TightestPlacement
from trilemma.simulation.cluster.policies.moving import JobMover, grow
from trilemma.simulation.cluster.policies.shapes import Fitting, shapes_of
from trilemma.simulation.cluster.quotas import allows
from trilemma.simulation.cluster.runs import JobRun


class WaitingGroup:
    """Jobs of one queue, priority and shape: where the first does not go, none does. ``why`` it does not."""

    __slots__ = ("key", "runs", "why")

    def __init__(self, key: tuple[str, int, int]) -> None:
        self.key = key
        self.runs: list[tuple[tuple[int, int, int], JobRun]] = []
        self.why = ""

    def push(self, run: JobRun) -> None:
        heapq.heappush(self.runs, (run.order, run))

    @property
    def head(self) -> JobRun:
        return self.runs[0][1]

    def pop(self) -> JobRun:
        return heapq.heappop(self.runs)[1]


class OpenLine:
    """Any job that goes is started, in order of priority and time; none holds up another (best effort).

    With ``yields``, running jobs of a lower priority make room where that lets a job start, and only there.
    """

    name: ClassVar[str] = "first-fit"

    def __init__(self, desk: ClusterRun, placement: TightestPlacement, *, yields: bool = False) -> None:
        self.desk, self.placement, self.yields = desk, placement, yields
        self.waiting = 0
        self.stuck = 0
        self.groups: dict[tuple[str, int, int], WaitingGroup] = {}
        rules = desk.rules
        self.mover = JobMover(self) if rules.resizes or rules.move_ticks is not None else None
        self._ready: list[tuple[tuple[int, int, int], int, WaitingGroup]] = []

    def arrive(self, run: JobRun) -> None:
        job = run.job
        key = (job.queue, job.priority, run.form)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = WaitingGroup(key)
        group.push(run)
        self.waiting += 1
        if not group.why and group.head is run:
            self.may_go(group)

    def may_go(self, group: WaitingGroup) -> None:
        """The head of ``group`` is to be tried in its turn."""
        heapq.heappush(self._ready, (group.head.order, id(group), group))

    def left(self, run: JobRun) -> None:
        """Nothing to do: what became free is known of the nodes."""

    def schedule(self) -> None:
        if self.desk.state.freed:
            self.try_again()
        moved = False
        while self._ready:
            order, _, group = heapq.heappop(self._ready)
            if not group.runs or group.why or group.head.order != order:
                continue
            moved = True
            if self.tried(group) and group.runs:
                self.may_go(group)
            if self.desk.state.freed:
                self.try_again()
        if moved:
            self.stuck = self.stuck_units()

    def tried(self, group: WaitingGroup) -> bool:
        """Whether the head of ``group`` was started."""
        run = group.head
        group.why = self.attempt(run)
        if group.why:
            return False
        self.waiting -= 1
        if group.head is run:
            group.pop()
        else:  # one of the same group was thrown out for it and stands before it
            group.runs.remove((run.order, run))
            heapq.heapify(group.runs)
        return True

    def try_again(self) -> None:
        """What was turned down and may go now that nodes gave something back."""
        state = self.desk.state
        freed = state.freed
        most = max(int(state.whole[node]) for node in freed)
        freed.clear()
        gone = []
        for key, group in self.groups.items():
            if not group.runs:
                gone.append(key)
            elif group.why and (self.mover or group.why != "place" or not _too_large(group.head.job.shape, most)):
                run = group.head
                if self.yields or self.allowed(run):
                    group.why = ""
                    self.may_go(group)
        for key in gone:
            del self.groups[key]

    def attempt(self, run: JobRun) -> str:
        """Start ``run`` if it goes; else why not: "quota" or "place"."""
        if not self.allowed(run):
            return "quota" if not self.makes_room(run) else ""
        found = self.fitting(run)
        if found is None:
            made = (self.mover is not None and self.mover.makes_place(run)) or self.makes_room(run)
            return "" if made else "place"
        self.desk.start(run, found.place, found.shape)
        return ""

    def began(self, run: JobRun) -> None:
        """``run`` runs on, elsewhere or in another size: nothing to do."""

    def settled(self) -> None:
        """All that can start now has: jobs that run smaller than they may grow while nobody waits."""
        if self.desk.rules.resizes and not self.waiting:
            grow(self.desk, self.placement, self.began)

    def allowed(self, run: JobRun) -> bool:
        """Whether the quota of its queue has room for ``run``."""
        return allows(run.quota, run.units)

    def fitting(self, run: JobRun) -> Fitting | None:
        """Where ``run`` goes now; smaller, or with its cards apart, where it may and the whole does not go."""
        for shape in shapes_of(run.job.shape):
            place = self.placement.choose(shape)
            if place is not None:
                return Fitting(place, shape)
        return None

    def victims(self, run: JobRun) -> Sequence[JobRun]:
        """Running jobs that may make room for ``run``, those that leave first at the front."""
        lower = [
            one for one in self.desk.running.values() if one.job.preemptible and one.job.priority < run.job.priority
        ]
        return sorted(lower, key=lambda one: (one.job.priority, -one.started))

    def makes_room(self, run: JobRun) -> bool:
        if not self.yields:
            return False
        leaving = self.fewest_leaving(run, self.victims(run))
        if not leaving:
            return False
        for one in leaving:
            self.desk.stop(one, "preemption")
        found = self.fitting(run)
        assert found is not None, "room that was made is there"
        self.desk.start(run, found.place, found.shape)
        return True

    def fewest_leaving(self, run: JobRun, victims: Sequence[JobRun]) -> list[JobRun]:
        """Of ``victims``, in their order, those without whom ``run`` goes; none where it does not go even without all of them.

        Tried on the state of the cluster and put back: nobody leaves for a job that then does not fit.
        """
        freed = set(self.desk.state.freed)
        out: list[JobRun] = []
        for one in victims if self._goes_without(run, victims) else ():
            if self.may_leave(run, one):
                self._lift(one)
                out.append(one)
                if self.goes(run):
                    break
        else:
            self._put_back(out)
            self.desk.state.freed = freed
            return []
        for one in list(reversed(out[:-1])):
            self._drop(one)
            if self.goes(run):
                out.remove(one)
            else:
                self._lift(one)
        self._put_back(out)
        self.desk.state.freed = freed
        return out

    def may_leave(self, run: JobRun, one: JobRun) -> bool:  # noqa: ARG002 - of queues that borrow
        """Whether ``one`` still may make room for ``run``, others having left."""
        return True

    def _goes_without(self, run: JobRun, victims: Sequence[JobRun]) -> bool:
        for one in victims:
            self._lift(one)
        goes = self.goes(run)
        self._put_back(victims)
        return goes

    def goes(self, run: JobRun) -> bool:
        """Whether ``run`` could start as things stand."""
        return self.allowed(run) and self.fitting(run) is not None

    def _lift(self, one: JobRun) -> None:
        self.desk.state.give_back(one.placed)
        if one.quota is not None:
            one.quota.remove(one.units)

    def _drop(self, one: JobRun) -> None:
        self.desk.state.retake(one.placed)
        if one.quota is not None:
            one.quota.add(one.units)

    def _put_back(self, out: Iterable[JobRun]) -> None:
        for one in out:
            self._drop(one)

    def stuck_units(self) -> int:
        """Units that wait for a place though as many are free: what fragmentation costs now."""
        free, stuck = self.desk.state.free_units, 0
        for group in self.groups.values():
            if group.why == "place":
                units = group.head.units
                if units <= free:
                    stuck += units * len(group.runs)
        return stuck


def _too_large(shape: GangShape, whole: int) -> bool:
    """Whether one pod of ``shape`` cannot stand on a node with ``whole`` free cards."""
    single = shape.pods == 1 and shape.gpu_milli == WHOLE and not shape.divisible
    return single and shape.gpus > whole
