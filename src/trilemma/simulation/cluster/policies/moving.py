"""Running jobs that change place or size: moved so that what is free lies together, grown and shrunk where they may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import GangShape
from trilemma.simulation.cluster.placement import ChosenPlace, TightestPlacement
from trilemma.simulation.cluster.policies.shapes import Fitting, shapes_of
from trilemma.simulation.cluster.runs import JobRun
from trilemma.simulation.cluster.state import PlacedPod

#: Running jobs that are looked at to make one place.
_MOST_LOOKED_AT = 64


class MovingLine(Protocol):
    """What a mover asks of the line that it serves."""

    desk: ClusterRun
    placement: TightestPlacement

    def goes(self, run: JobRun) -> bool:
        """Whether ``run`` could start as things stand."""

    def fitting(self, run: JobRun) -> Fitting | None:
        """Where ``run`` goes now."""

    def began(self, run: JobRun) -> None:
        """``run`` runs on, elsewhere or in another size."""


class Trial:
    """Changes of the cluster's state that are all put back."""

    def __init__(self, desk: ClusterRun) -> None:
        self.desk = desk
        self._freed = set(desk.state.freed)
        self._undo: list[Callable[[], None]] = []

    def lift(self, run: JobRun) -> None:
        """Take ``run`` away."""
        placed, units = run.placed, run.units
        self.desk.state.give_back(placed)
        if run.quota is not None:
            run.quota.remove(units)
        self._undo.append(lambda: self._retake(run, placed, units))

    def put(self, run: JobRun, shape: GangShape, place: ChosenPlace) -> None:
        """Put ``run`` to ``place``."""
        placed = self.desk.state.take(shape, place.nodes, place.cards)
        units = shape.units(self.desk.state.of_cpus)
        if run.quota is not None:
            run.quota.add(units)
        self._undo.append(lambda: self._return(run, placed, units))

    def back_by(self, changes: int) -> None:
        """Put the latest ``changes`` back."""
        for _ in range(changes):
            self._undo.pop()()

    def back(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self.desk.state.freed = self._freed

    def _retake(self, run: JobRun, placed: Sequence[PlacedPod], units: int) -> None:
        self.desk.state.retake(placed)
        if run.quota is not None:
            run.quota.add(units)

    def _return(self, run: JobRun, placed: Sequence[PlacedPod], units: int) -> None:
        self.desk.state.give_back(placed)
        if run.quota is not None:
            run.quota.remove(units)


class JobMover:
    """Makes a place for a job by moving others together, or by shrinking those that may be smaller."""

    def __init__(self, line: MovingLine) -> None:
        self.line, self.desk = line, line.desk

    def makes_place(self, run: JobRun) -> bool:
        """Start ``run`` where others make a place for it; whether they did."""
        rules = self.desk.rules
        return (rules.resizes and self._by_shrinking(run)) or (rules.move_ticks is not None and self._by_moving(run))

    def _by_shrinking(self, run: JobRun) -> bool:
        """Jobs that came last give up pods first, as many jobs as it takes."""
        smaller: list[tuple[JobRun, Fitting]] = []
        trial = Trial(self.desk)
        elastic = [
            one
            for one in self.desk.running.values()
            if one.shape.fewest_pods and one.shape.pods > one.shape.fewest_pods
        ]
        for one in sorted(elastic, key=lambda one: (one.job.priority, -one.started))[:_MOST_LOOKED_AT]:
            for shape in (of for of in shapes_of(one.job.shape) if of.pods < one.shape.pods):
                found = self._smaller(one, shape, trial)
                if found is None:
                    break
                if self.line.goes(run):
                    trial.back()
                    self._settle([*smaller, (one, found)], run)
                    return True
                if shape.pods > one.shape.fewest_pods:
                    trial.back_by(2)
                else:
                    smaller.append((one, found))
        trial.back()
        return False

    def _smaller(self, one: JobRun, shape: GangShape, trial: Trial) -> Fitting | None:
        trial.lift(one)
        place = self.line.placement.choose(shape)
        if place is None:
            trial.back_by(1)
            return None
        trial.put(one, shape, place)
        return Fitting(place, shape)

    def _by_moving(self, run: JobRun) -> bool:
        """Jobs on the emptiest nodes are lifted until ``run`` goes; it does only where all of them find another place, and where
        that costs less than what it lets run."""
        desk = self.desk
        if desk.state.free_units < run.units:
            return False
        trial = Trial(desk)
        lifted: list[JobRun] = []
        for one in self._movable(run):
            trial.lift(one)
            lifted.append(one)
            if self.line.goes(run):
                break
        trial.back()
        lifted = self._needed(run, lifted)
        if not lifted or sum(one.units * self._pause(one) for one in lifted) > run.units * run.job.expected_ticks:
            return False
        trial = Trial(desk)
        for one in lifted:
            trial.lift(one)
        found, moved = self.line.fitting(run), []
        if found is not None:
            trial.put(run, found.shape, found.place)
            for one in sorted(lifted, key=lambda one: -one.units):
                place = self.line.placement.choose(one.shape)
                if place is None:
                    break
                trial.put(one, one.shape, place)
                moved.append((one, Fitting(place, one.shape)))
        trial.back()
        if found is None or len(moved) < len(lifted):
            return False
        self._settle(moved, run, found)
        return True

    def _movable(self, run: JobRun) -> list[JobRun]:
        """Smaller jobs that may be stopped and have more to do than a move takes, those on the emptiest nodes first."""
        state = self.desk.state
        there = [
            one for one in self.desk.running.values()
            if one.job.preemptible and one.units < run.units and one.ends - self.desk.now > 2 * self._pause(one)
        ]  # fmt: skip
        used = {
            one.at: sum(state.node_units(pod.node) - int(state.total[pod.node]) for pod in one.placed) for one in there
        }
        return sorted(there, key=lambda one: (used[one.at], one.units))[:_MOST_LOOKED_AT]

    def _needed(self, run: JobRun, lifted: Sequence[JobRun]) -> list[JobRun]:
        """Those of ``lifted`` without whom ``run`` does not go; none where it does not go without all of them."""
        trial = Trial(self.desk)
        for one in lifted:
            trial.lift(one)
        goes = bool(lifted) and self.line.goes(run)
        trial.back()
        kept = list(lifted) if goes else []
        for one in list(reversed(kept[:-1])):
            trial = Trial(self.desk)
            for other in kept:
                if other is not one:
                    trial.lift(other)
            if self.line.goes(run):
                kept.remove(one)
            trial.back()
        return kept

    def _pause(self, run: JobRun) -> int:
        return (self.desk.rules.move_ticks or 0) + run.job.restart_ticks

    def _settle(self, moved: Sequence[tuple[JobRun, Fitting]], run: JobRun, found: Fitting | None = None) -> None:
        """What was tried, for good: all leave, then ``run`` and they begin."""
        for one, _ in moved:
            self.desk.pause(one)
        if found is not None:
            self.desk.start(run, found.place, found.shape)
        for one, fitting in moved:
            self.desk.resume(one, fitting.place, fitting.shape)
            self.line.began(one)
        if found is None:
            goes = self.line.fitting(run)
            assert goes is not None, "the place that was made is there"
            self.desk.start(run, goes.place, goes.shape)


def grow(desk: ClusterRun, placement: TightestPlacement, began: Callable[[JobRun], None]) -> None:
    """Jobs that run smaller than they may take what is free while nobody waits, where they end sooner for it."""
    for run in list(desk.running.values()):
        if not run.shape.fewest_pods or run.shape.pods >= run.job.shape.pods or not desk.state.free_units:
            continue
        trial = Trial(desk)
        trial.lift(run)
        found = None
        for shape in shapes_of(run.job.shape):
            if shape.pods <= run.shape.pods:
                break
            place = placement.choose(shape)
            if place is not None:
                found = Fitting(place, shape)
                break
        trial.back()
        if found is not None and _sooner(desk, run, found.shape):
            desk.pause(run)
            desk.resume(run, found.place, found.shape)
            began(run)


def _sooner(desk: ClusterRun, run: JobRun, shape: GangShape) -> bool:
    """Whether it ends sooner in ``shape``, with what changing takes."""
    left = run.ends - desk.now
    pause = (desk.rules.move_ticks or 0) + run.job.restart_ticks
    return left - left * run.shape.total_gpus / shape.total_gpus > pause
