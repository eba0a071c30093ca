"""The clock of the cluster: arrivals, ends, failures and repairs, in the order of time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from trilemma.errors import InputError
from trilemma.simulation.cluster.jobs import ClusterJob, GangShape
from trilemma.simulation.cluster.ledger import HoursBook
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.placed_speed import PlacedSpeed, PlacementTiming, place_of
from trilemma.simulation.cluster.placement import ChosenPlace
from trilemma.simulation.cluster.quotas import QuotaTree
from trilemma.simulation.cluster.runs import JobRun
from trilemma.simulation.cluster.state import ClusterState, PlacedPod

_FINISH, _REPAIR, _FAIL, _WAKE = range(4)
#: Events after which a simulation is taken for one that never ends.
MOST_EVENTS = 500_000_000


class QueuePolicy(Protocol):
    """What decides. ``waiting`` jobs there are, ``stuck`` units of them would fit by count and find no place."""

    waiting: int
    stuck: int

    def arrive(self, run: JobRun) -> None:
        """A job waits, newly or again."""

    def left(self, run: JobRun) -> None:
        """A job that ran has ended."""

    def schedule(self) -> None:
        """Start what can start now."""

    def settled(self) -> None:
        """What can start has."""

    def began(self, run: JobRun) -> None:
        """A job runs that the policy did not start there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFailures:
    """Each node fails after ``mtbf_ticks`` in the mean, at any time alike, and is back ``repair_ticks`` later."""

    mtbf_ticks: int
    repair_ticks: int
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRules:
    """What bounds a run: its end (None: when all is done), failures, and how much longer work takes by how far it is spread:
    by ``timings`` of what jobs say they train, else by the ``slowdown`` of the level. Jobs may be moved for others where
    ``move_ticks`` says how long they stand still for it (beside their restart), and ``resizes`` lets those grow and shrink that
    may be smaller."""

    until_ticks: int | None = None
    failures: NodeFailures | None = None
    slowdown: dict[str, float] = field(default_factory=dict)
    timings: Mapping[str, PlacementTiming] = field(default_factory=dict)
    move_ticks: int | None = None
    resizes: bool = False
    keeps_stretches: bool = False


class ClusterRun:
    """One cluster, one workload, one policy."""

    def __init__(
        self, state: ClusterState, jobs: Sequence[ClusterJob], quotas: QuotaTree, rules: RunRules,
        policy: Callable[[ClusterRun], QueuePolicy],
    ) -> None:  # fmt: skip
        self.state, self.quotas, self.rules = state, quotas, rules
        self.now = 0
        self.book = HoursBook(state.capacity_units)
        forms: dict[GangShape, int] = {}
        self.runs = [
            JobRun(
                at,
                one,
                quotas.queue(one.queue),
                forms.setdefault(one.shape, len(forms)),
                one.shape.units(state.of_cpus),
            )
            for at, one in enumerate(sorted(jobs, key=lambda one: one.submit_ticks))
        ]
        self.running: dict[int, JobRun] = {}
        self.down_units = 0
        self.events = 0
        self.peak_units = 0
        self.asked_units = 0
        self._heap: list[tuple[float, int, int, int]] = []
        self._finishing = 0
        self._waking = 0
        self._random = np.random.default_rng(0 if rules.failures is None else rules.failures.seed)
        self.policy = policy(self)

    def go(self) -> None:
        """Run to the end: all jobs done, nothing that could change, or the time that was asked for."""
        until = math.inf if self.rules.until_ticks is None else self.rules.until_ticks
        coming, many = 0, len(self.runs)
        if self.rules.failures is not None:
            for node in range(len(self.state.nodes)):
                self._fails_later(node)
        while coming < many or self._finishing or self.down_units or self._waking:
            arrives = self.runs[coming].job.submit_ticks if coming < many else math.inf
            at = min(arrives, self._heap[0][0] if self._heap else math.inf)
            if at > until or at == math.inf:
                break
            self._passes(int(at))
            while self._heap and self._heap[0][0] == at:
                self._happens(*heapq.heappop(self._heap)[1:])
            while coming < many and self.runs[coming].job.submit_ticks == at:
                if not self.runs[coming].running:
                    self._come(self.runs[coming])
                coming += 1
                self.events += 1
            self.policy.schedule()
            self.policy.settled()
            if self.events > MOST_EVENTS:
                raise InputError(f"the workload takes more than {MOST_EVENTS:,} events; cut it in time with `until`")
        self._close(until)

    def _come(self, run: JobRun) -> None:
        run.seen = self.state.free_units, self.asked_units
        self.asked_units += run.units_asked
        self.policy.arrive(run)

    def _passes(self, at: int) -> None:
        self.book.passes(at, self.state.free_units, self.down_units, self.policy.stuck, self.policy.waiting > 0)
        self.now = at
        busy = self.state.capacity_units - self.state.free_units - self.down_units
        self.peak_units = max(self.peak_units, busy)

    def _happens(self, kind: int, which: int, epoch: int) -> None:
        self.events += 1
        if kind == _FINISH:
            run = self.runs[which]
            if run.epoch == epoch and run.running:
                self._finish(run)
        elif kind == _FAIL:
            self._fail(which)
        elif kind == _WAKE:
            self._waking -= 1
        elif kind == _REPAIR:
            self.down_units -= self.state.node_units(which)
            self.state.repair(which)
            self._fails_later(which)

    def wake(self, at: int) -> None:
        """Ask the policy again at ``at`` ticks."""
        self._waking += 1
        heapq.heappush(self._heap, (at, _WAKE, 0, 0))

    def start(self, run: JobRun, place: ChosenPlace, shape: GangShape, delay: int = 0) -> None:
        """Begin ``run`` as ``shape`` where ``place`` says; its pods come ``delay`` ticks after what they hold is held."""
        self.asked_units -= run.units_asked
        placed = self.state.take(shape, place.nodes, place.cards)
        run.shape, run.units = shape, shape.units(self.state.of_cpus)
        run.span = self.state.span(placed)
        pace, run.mfu = self._speed(run, placed)
        run.spread = pace
        whole = run.job.shape.total_gpus
        if whole and shape.fewest_pods and shape.total_gpus < whole:
            pace *= whole / shape.total_gpus
        run.begin(self.now, placed, pace, delay)
        if run.quota is not None:
            run.quota.add(run.units)
        self.running[run.at] = run
        if run.ends < math.inf:
            self._finishing += 1
            heapq.heappush(self._heap, (run.ends, _FINISH, run.at, run.epoch))

    def _speed(self, run: JobRun, placed: Sequence[PlacedPod]) -> PlacedSpeed:
        timing = self.rules.timings.get(run.job.training)
        if timing is not None and run.shape.gpus and run.shape.gpu_milli == WHOLE:
            return timing.placed(place_of(self.state, placed, run.span))
        pace, mfu = self.rules.slowdown.get(run.span, 1.0), run.job.mfu
        return PlacedSpeed(pace, None if mfu is None else mfu / pace)

    def stop(self, run: JobRun, cause: str) -> None:
        """Throw ``run`` out for ``cause``; it waits again."""
        kept, lost, starting = run.split(self.now, whole=False)
        self._leaves(run, kept, lost, starting, cause)
        run.preemptions += cause == "preemption"
        run.lost += lost
        run.worst_loss = max(run.worst_loss, lost)
        run.restart_cause = cause
        run.shape, run.units = run.job.shape, run.job.shape.units(self.state.of_cpus)
        self.asked_units += run.units_asked
        self.policy.left(run)
        self.policy.arrive(run)

    def pause(self, run: JobRun) -> None:
        """Stop ``run`` with all that it did, to be resumed at once."""
        kept, _, starting = run.split(self.now, whole=True)
        run.kept += round(kept / run.pace)
        self._leaves(run, kept, 0, starting, "")
        run.restart_cause = "moving"
        run.moves += 1
        self.asked_units += run.units_asked
        self.policy.left(run)

    def resume(self, run: JobRun, place: ChosenPlace, shape: GangShape) -> None:
        """Go on at ``place`` as ``shape``, after what moving takes."""
        self.start(run, place, shape, self.rules.move_ticks or 0)

    def _finish(self, run: JobRun) -> None:
        kept, lost, starting = run.split(self.now, whole=True)
        self._leaves(run, kept, lost, starting, "")
        run.finished = self.now
        self.policy.left(run)

    def _leaves(self, run: JobRun, kept: int, lost: int, starting: int, cause: str) -> None:
        self.book.ends(run.units, kept, lost, starting, cause, run.restart_cause)
        self._weigh(run, kept)
        if self.rules.keeps_stretches:
            run.stretches.append((run.started, self.now, run.placed))
        if run.ends < math.inf:
            self._finishing -= 1
        self.state.give_back(run.placed)
        if run.quota is not None:
            run.quota.remove(run.units)
        run.placed, run.ends = (), math.inf
        run.epoch += 1
        del self.running[run.at]

    def _weigh(self, run: JobRun, kept: int) -> None:
        """Count ``kept`` ticks by the use that ``run`` makes of its cards, and what its place took of them."""
        self.book.weigh(run.units * kept, run.mfu)
        run.useful_units += run.units * kept
        run.spread_units += run.units * kept * (1.0 - 1.0 / run.spread)
        if run.mfu is not None:
            run.mfu_units += run.units * kept * run.mfu

    def _fails_later(self, node: int) -> None:
        rule = self.rules.failures
        if rule is not None:
            after = round(self._random.exponential(rule.mtbf_ticks)) + 1
            heapq.heappush(self._heap, (self.now + after, _FAIL, node, 0))

    def _fail(self, node: int) -> None:
        rule = self.rules.failures
        assert rule is not None
        hit = [run for run in self.running.values() if any(one.node == node for one in run.placed)]
        for run in hit:
            self.stop(run, "failure")
        self.state.fail(node)
        self.down_units += self.state.node_units(node)
        heapq.heappush(self._heap, (self.now + rule.repair_ticks, _REPAIR, node, 0))

    def _close(self, until: float) -> None:
        """Count what still runs as useful so far."""
        if until < math.inf:
            self._passes(max(int(until), self.now))
        for run in self.running.values():
            kept, _, starting = run.split(self.now, whole=True)
            self.book.ends(run.units, kept, 0, starting, "", run.restart_cause)
            self._weigh(run, kept)
            if self.rules.keeps_stretches:
                run.stretches.append((run.started, self.now, run.placed))
