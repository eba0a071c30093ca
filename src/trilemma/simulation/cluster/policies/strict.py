"""First in, first out: the head of a queue holds up what is behind it; with backfill, what does not delay it goes past."""

from __future__ import annotations

import bisect
import math
from typing import ClassVar, NamedTuple

import numpy as np

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.placement import TightestPlacement
from trilemma.simulation.cluster.policies.lines import OpenLine
from trilemma.simulation.cluster.runs import JobRun

#: Jobs behind the head that backfill looks at (Slurm's bf_max_job_test: slurm.conf, SchedulerParameters, default 500).
_DEPTH = 500


class Reservation(NamedTuple):
    """When the head of a queue starts at the latest, and on which nodes."""

    at: float
    nodes: frozenset[int]


class StrictLine(OpenLine):
    """Each queue in its order; what does not go holds up the rest of its queue."""

    name: ClassVar[str] = "fifo"

    def __init__(self, desk: ClusterRun, placement: TightestPlacement, *, yields: bool = False) -> None:
        super().__init__(desk, placement, yields=yields)
        self.lines: dict[str, list[tuple[tuple[int, int, int], JobRun]]] = {}
        self._why: dict[str, str] = {}

    def arrive(self, run: JobRun) -> None:
        self.waiting += 1
        line = self.lines.setdefault(run.job.queue, [])
        bisect.insort(line, (run.order, run), key=lambda one: one[0])
        if line[0][1] is run:
            self._why.pop(run.job.queue, None)

    def schedule(self) -> None:
        freed = self.desk.state.freed
        while True:
            if freed:
                self._why.clear()
                freed.clear()
            open_lines = [line for queue, line in self.lines.items() if line and queue not in self._why]
            if not open_lines:
                break
            line = min(open_lines, key=lambda one: one[0][0])
            run = line[0][1]
            why = self.attempt(run)
            if why:
                self._why[run.job.queue] = why
                continue
            line.pop(bisect.bisect_left(line, run.order, key=lambda one: one[0]))
            self.waiting -= 1
        self.fill_behind()
        freed.clear()
        self.stuck = self.stuck_units()

    def fill_behind(self) -> None:
        """What may go past the heads: nothing here."""

    def stuck_units(self) -> int:
        free = self.desk.state.free_units
        heads = (self.lines[queue][0][1] for queue, why in self._why.items() if why == "place" and self.lines[queue])
        return sum(run.units for run in heads if run.units <= free)


class BackfillLine(StrictLine):
    """EASY backfill: the head of a queue gets a reservation for when enough ends; jobs behind it start now where they end
    before it or stay off its nodes (Lifka 1995; Slurm sched/backfill)."""

    name: ClassVar[str] = "backfill"

    def __init__(self, desk: ClusterRun, placement: TightestPlacement, *, yields: bool = False) -> None:
        super().__init__(desk, placement, yields=yields)
        self._ends: list[tuple[float, int]] = []
        self._end_of: dict[int, float] = {}
        self._held: dict[str, tuple[JobRun, Reservation, set[int]]] = {}
        self._new: list[JobRun] = []

    def left(self, run: JobRun) -> None:
        end = self._end_of.pop(run.at, None)
        if end is not None:
            del self._ends[bisect.bisect_left(self._ends, (end, run.at))]

    def attempt(self, run: JobRun) -> str:
        why = super().attempt(run)
        if not why:
            self.began(run)
        return why

    def arrive(self, run: JobRun) -> None:
        super().arrive(run)
        self._new.append(run)

    def schedule(self) -> None:
        if self.desk.state.freed:
            self._held.clear()
        super().schedule()

    def fill_behind(self) -> None:
        for queue, why in self._why.items():
            line = self.lines[queue]
            if len(line) < 2:
                continue
            head = line[0][1]
            known = self._held.get(queue)
            if known is not None and known[0] is head:
                _, held, turned_down = known
                behind = [one for one in self._new if one.job.queue == queue and not one.running and one is not head]
            else:
                held = self._reserved(head) if why == "place" else Reservation(math.inf, frozenset())
                turned_down = {head.form} if why == "place" else set()
                self._held[queue] = head, held, turned_down
                behind = [run for _, run in line[1 : _DEPTH + 1]]
            for run in behind:
                if run.form not in turned_down and self.desk.state.free_units and self._passes(run, held, turned_down):
                    line.pop(bisect.bisect_left(line, run.order, key=lambda one: one[0]))
                    self.waiting -= 1
        self._new.clear()

    def _passes(self, run: JobRun, held: Reservation, turned_down: set[int]) -> bool:
        """Start ``run`` where that does not delay the head; whether it did. Forms that go nowhere are ``turned_down``, and
        those that went only to the head's nodes by -form - 1: for jobs that end too late."""
        late = self.desk.now + run.job.restart_ticks * bool(run.restart_cause) + run.job.expected_ticks > held.at
        if (late and -run.form - 1 in turned_down) or not self.allowed(run):
            return False
        found = self.fitting(run)
        if found is None:
            turned_down.add(run.form)
            return False
        if late and any(node in held.nodes for node, _ in found.place.nodes):
            turned_down.add(-run.form - 1)
            return False
        self.desk.start(run, found.place, found.shape)
        self.began(run)
        return True

    def began(self, run: JobRun) -> None:
        self._end_of[run.at] = run.expected_end
        bisect.insort(self._ends, (run.expected_end, run.at))

    def _reserved(self, head: JobRun) -> Reservation:
        """When running jobs, ending as expected, leave room for ``head``, and the nodes it would take.

        Cards alone are counted: a head that waits for CPU is given the first nodes with the cards.
        """
        shape, state = head.job.shape, self.desk.state
        each = max(shape.gpus, 1)
        milli = shape.gpus * shape.gpu_milli
        free = (state.total if milli < 1000 else state.whole * 1000).tolist()
        allowed = state.could_fit(shape) > 0
        wanted = milli if milli < 1000 else each * 1000
        pods = [amount // wanted if ok else 0 for amount, ok in zip(free, allowed, strict=True)]
        total = sum(pods)
        at: float = self.desk.now
        for end, which in self._ends:
            if total >= shape.pods:
                break
            at = max(end, self.desk.now)
            for one in self.desk.running[which].placed:
                free[one.node] += len(one.cards) * one.gpu_milli
                if allowed[one.node]:
                    more = free[one.node] // wanted - pods[one.node]
                    pods[one.node] += more
                    total += more
        if total < shape.pods:
            return Reservation(math.inf, frozenset())
        nodes = np.argsort([-one for one in pods], kind="stable")
        chosen, left = set(), shape.pods
        for node in nodes:
            if left <= 0:
                break
            chosen.add(int(node))
            left -= pods[node]
        return Reservation(at, frozenset(chosen))
