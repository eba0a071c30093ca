"""What happened, as it was seen: jobs begin and end when their file says, on the nodes that it names."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from typing import ClassVar

from trilemma.errors import InputError, shorten
from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import ClusterJob
from trilemma.simulation.cluster.placement import ChosenPlace, TightestPlacement
from trilemma.simulation.cluster.policies.shapes import Fitting, shapes_of
from trilemma.simulation.cluster.runs import JobRun


class ObservedLine:
    """No scheduler: each job starts when it was seen to. One that was never seen to start asks for nothing."""

    name: ClassVar[str] = "observed"

    def __init__(self, desk: ClusterRun, placement: TightestPlacement, *, yields: bool = False) -> None:  # noqa: ARG002 - nobody yields
        self.desk, self.placement = desk, placement
        self.waiting = 0
        self.stuck = 0
        self._due: list[tuple[int, int]] = []
        self._nodes = {one.name: at for at, one in enumerate(desk.state.nodes)}

    def arrive(self, run: JobRun) -> None:
        start = run.job.start_ticks
        if start is None:
            return
        self.waiting += 1
        heapq.heappush(self._due, (start, run.at))
        if start > self.desk.now:
            self.desk.wake(start)

    def left(self, run: JobRun) -> None:
        """Nothing to do."""

    def began(self, run: JobRun) -> None:
        """Nothing to do."""

    def settled(self) -> None:
        """Nothing to do."""

    def schedule(self) -> None:
        while self._due and self._due[0][0] <= self.desk.now:
            run = self.desk.runs[heapq.heappop(self._due)[1]]
            self.waiting -= 1
            found = self.place(run.job)
            self.desk.start(run, found.place, found.shape)
        self.desk.state.freed.clear()

    def place(self, job: ClusterJob) -> Fitting:
        """Where it was seen, else wherever there is room. Raises `InputError` where there is none."""
        return self._where_seen(job) or self._anywhere(job)

    def _where_seen(self, job: ClusterJob) -> Fitting | None:
        """Its nodes with an even share of its cards each; None where they are not told, not known or full."""
        shape, many = job.shape, len(job.on_nodes)
        cards = shape.pods * shape.gpus
        if not many or cards % many or any(one not in self._nodes for one in job.on_nodes):
            return None
        shape = replace(
            shape, pods=many, gpus=cards // many, cpu_milli=shape.cpu_milli * shape.pods // many, fewest_pods=0
        )
        room = self.desk.state.fits(shape)
        nodes = Counter(self._nodes[one] for one in job.on_nodes)
        if any(room[one] < pods for one, pods in nodes.items()):
            return None
        return Fitting(ChosenPlace(list(nodes.items())), shape)

    def _anywhere(self, job: ClusterJob) -> Fitting:
        for shape in shapes_of(replace(job.shape, divisible=True, within="", strict=False, fewest_pods=0, models=())):
            place = self.placement.choose(shape)
            if place is not None:
                return Fitting(place, shape)
        single = replace(job.shape, within="", strict=False, fewest_pods=0, models=()).in_single_cards()
        place = self.placement.choose(single)
        if place is None:
            raise InputError(
                f"{job.where or 'job ' + shorten(job.name, most=40)}: when it began, jobs held more than the nodes have; give all"
                " nodes of that time, and every job once"
            )
        return Fitting(place, single)


def seat(desk: ClusterRun) -> None:
    """Start the jobs that were seen to run, where they were, before the clock goes on: those whose nodes are known first."""
    eye = ObservedLine(desk, TightestPlacement(desk.state, ()))
    seen = [run for run in desk.runs if run.job.start_ticks is not None]
    for run in sorted(seen, key=lambda run: (not run.job.on_nodes, -run.units)):
        found = eye.place(run.job)
        desk.asked_units += run.units_asked
        desk.start(run, found.place, found.shape)
        desk.policy.began(run)


def as_observed(jobs: tuple[ClusterJob, ...]) -> tuple[tuple[ClusterJob, ...], int]:
    """Jobs whose work is what they were seen to do, and when the last was seen. Raises `InputError` where none was seen to
    start."""
    if not any(one.start_ticks is not None for one in jobs):
        raise InputError(
            "`policy` observed needs the times at which jobs started; give a table with start and end, such as sacct's"
        )
    last = max(max(one.submit_ticks, one.start_ticks or 0, one.end_ticks or 0) for one in jobs)
    found = []
    for one in jobs:
        begun = one.start_ticks
        work = None if begun is None or one.end_ticks is None else max(one.end_ticks - begun, 0)
        found.append(replace(one, work_ticks=work, training="", preemptible=False))
    return tuple(found), last
