"""The question of a simulation of a cluster: nodes, jobs, queues and rules from what was given for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trilemma.ask.cluster_trainings import (
    ClusterFabric,
    read_trainings,
    timings_of_commands,
    with_work_of_steps,
)
from trilemma.ask.cluster_words import node_failures, oversubscriptions, slowdowns
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.quantities import counted
from trilemma.simulation.cluster.drawn_jobs import demanding, draw_jobs, faster
from trilemma.simulation.cluster.event_loop import RunRules
from trilemma.simulation.cluster.jobs import ClusterJob, ticks
from trilemma.simulation.cluster.kueue_scenarios import read_scenario, states_scenario
from trilemma.simulation.cluster.nodes import WHOLE, ClusterNode, uniform_nodes
from trilemma.simulation.cluster.placed_speed import PlacementTiming
from trilemma.simulation.cluster.quotas import QueueQuota
from trilemma.simulation.cluster.simulation import POLICIES, ClusterQuestion, PolicyChoice
from trilemma.simulation.cluster.slurm_topology import with_topology
from trilemma.simulation.cluster.tables import STILL, JobDefaults, read_dated_jobs, read_nodes, read_queues
from trilemma.simulation.cluster.telemetry import with_telemetry
from trilemma.simulation.cluster.virtual_cells import CellQuota, read_cells, states_cells

_UNIFORM = re.compile(r"(\d{1,6})x(\d{1,4})(?::(\d{1,4}))?(?::(\d{1,4}))?")
_DRAWN = re.compile(r"([a-z][a-z-]*):(\d{1,8})")
#: Jobs up to which the picture of space and time is kept without being asked for.
_PICTURED = 200_000


def question_of(asked: SimpleNamespace) -> ClusterQuestion:
    """What the options ask."""
    if asked.jobs is None:
        raise InputError("`jobs` is missing; give a table, philly:N or kalos:N")
    cells: tuple[CellQuota, ...] = ()
    scenario = read_scenario(Path(str(asked.jobs))) if states_scenario(Path(str(asked.jobs))) else None
    if scenario is None and asked.nodes is None:
        raise InputError("`nodes` is missing; give a table, or nodes and GPUs as 64x8")
    if scenario is not None:
        nodes, queues = list(scenario.nodes), scenario.queues
    if asked.nodes is not None:
        nodes, cells, stated = _nodes(asked.nodes)
        queues = queues if scenario is not None else stated
    if asked.topology is not None:
        nodes = with_topology(nodes, Path(str(asked.topology)))
    notes: list[PlanWarning] = []
    if asked.policy != "observed" and any(one.is_down for one in nodes):
        nodes = _up(nodes, notes)
    node_gpus = max(one.gpus for one in nodes)
    if asked.queues is not None:
        queues = tuple(read_queues(Path(str(asked.queues)), node_gpus))
    jobs = _jobs(asked, nodes, notes) if scenario is None else list(scenario.jobs)
    source = Path(str(asked.jobs)).name
    timings = _timings(asked, nodes, jobs)
    jobs = with_work_of_steps(jobs, timings)
    until = None if asked.until is None else ticks(_positive(asked.until, "until") * 3600)
    rules = RunRules(
        until_ticks=until, failures=node_failures(asked.failures, asked.seed or 0), slowdown=slowdowns(asked.slowdown),
        timings=timings, move_ticks=None if asked.move is None else ticks(_zero_or_more(asked.move, "move")),
        resizes=asked.elastic, keeps_stretches=len(jobs) <= _PICTURED,
    )  # fmt: skip
    return ClusterQuestion(
        nodes=tuple(nodes),
        jobs=tuple(jobs),
        queues=queues,
        cells=cells,
        rules=rules,
        source=source,
        notes=(*notes, *_unfinished(jobs, asked)),
    )


def _unfinished(jobs: Sequence[ClusterJob], asked: SimpleNamespace) -> list[PlanWarning]:
    """What is taken for the work of jobs that are not over."""
    still = [one for one in jobs if one.state in STILL]
    if not still or asked.policy == "observed":
        return []
    endless = sum(one.work_ticks is None for one in still)
    message = f"{counted(len(still), 'job')} still waited or ran: their time limit is taken for their work"
    message += f", and {endless:,} without one never end" if endless else ""
    return [PlanWarning(code="limits-for-work", message=message)]


def _timings(
    asked: SimpleNamespace, nodes: Sequence[ClusterNode], jobs: Sequence[ClusterJob]
) -> dict[str, PlacementTiming]:
    """What tells how fast jobs are where they stand: of ``trainings``, and of the commands that jobs state."""
    fabric = ClusterFabric(
        nodes=tuple(nodes), gpu=asked.gpu, network=asked.network, oversubscription=oversubscriptions(asked.oversubscription),
        models=asked.models,
    )  # fmt: skip
    stated = {} if asked.trainings is None else read_trainings(Path(str(asked.trainings)), fabric)
    asking = {one.training for one in jobs} - set(stated)
    timings = {**stated, **timings_of_commands((one for one in asking if " " in one), fabric)}
    judged: set[tuple[str, float]] = set()
    for one in jobs:
        key = one.training, one.shape.total_gpus
        timing = timings.get(one.training)
        if timing is not None and key not in judged and one.shape.gpus and one.shape.gpu_milli == WHOLE:
            judged.add(key)
            try:
                timing.nearest(int(one.shape.total_gpus))
            except InputError as error:
                where = f"{one.where}: " if one.where else ""
                raise InputError(f"{where}job {shorten(one.name, most=40)}: {error}") from None
    return timings


def _nodes(given: Any) -> tuple[list[ClusterNode], tuple[CellQuota, ...], tuple[QueueQuota, ...]]:
    """The nodes, and the cells and queues that come with them."""
    found, path = _UNIFORM.fullmatch(str(given)), Path(str(given))
    if found is None and path.suffix in (".yaml", ".yml") and states_cells(path):
        owned = read_cells(path)
        return list(owned.nodes), owned.cells, owned.queues
    if found is None:
        return read_nodes(path), (), ()
    many, gpus, per_rack, per_block = (int(one or 0) for one in found.groups())
    if not many or not gpus:
        raise InputError(f"`nodes` {given}: no node or no GPU; give one or more, such as 64x8")
    return uniform_nodes(many, gpus, per_rack=per_rack, per_block=per_block), (), ()


def _up(nodes: Sequence[ClusterNode], notes: list[PlanWarning]) -> list[ClusterNode]:
    """The nodes that take jobs, with a note of the others. Raises `InputError` where none does."""
    up = [one for one in nodes if not one.is_down]
    if not up:
        raise InputError("`nodes`: all are down or drained; give nodes that take jobs")
    message = f"{counted(len(nodes) - len(up), 'node')} of {len(nodes):,} down or drained: left out"
    notes.append(PlanWarning(code="nodes-down", message=message))
    return up


def _jobs(asked: SimpleNamespace, nodes: Sequence[ClusterNode], notes: list[PlanWarning]) -> list[ClusterJob]:
    gpus = sum(one.gpus for one in nodes)
    drawn = _DRAWN.fullmatch(str(asked.jobs))
    defaults = JobDefaults(
        checkpoint_s=asked.checkpoint, restart_s=asked.restart, divisible=asked.split, card=asked.gpu or ""
    )
    if drawn is None:
        jobs, origin_s = read_dated_jobs(Path(str(asked.jobs)), nodes, defaults)
        if asked.telemetry is not None:
            jobs, told = with_telemetry(jobs, Path(str(asked.telemetry)), origin_s)
            jobs_told = counted(told, "job")
            message = (
                f"the use of the cards is the share of cycles with busy tensor cores ({jobs_told}): MFU is at most that"
            )
            notes.append(PlanWarning(code="use-by-counters", message=message))
    else:
        jobs = draw_jobs(
            drawn[1], int(drawn[2]), capacity_gpus=gpus, node_gpus=max(one.gpus for one in nodes), load=asked.load,
            seed=asked.seed or 0, checkpoint_s=asked.checkpoint, restart_s=asked.restart,
        )  # fmt: skip
    if asked.count is not None:
        jobs = jobs[: asked.count]
    if asked.scale_arrivals != 1.0:
        jobs = faster(jobs, asked.scale_arrivals)
    if asked.demand is not None:
        of_cpus = not gpus
        capacity = sum(one.cpu_milli if of_cpus else one.gpu_milli for one in nodes)
        jobs = demanding(jobs, capacity, asked.demand, asked.seed or 0, of_cpus=of_cpus)
    return jobs


def history_of(asked: SimpleNamespace, nodes: Sequence[ClusterNode]) -> list[ClusterJob]:
    """Jobs that are over, which tell how long jobs run."""
    return [] if asked.history is None else read_dated_jobs(Path(str(asked.history)), nodes, JobDefaults())[0]


def others_of(
    question: ClusterQuestion, choice: PolicyChoice, words: str | None
) -> list[tuple[ClusterQuestion, PolicyChoice]]:
    """What is compared: other policies, and the same one with more nodes."""
    plain = replace(question, rules=replace(question.rules, keeps_stretches=False))
    # what was seen to run does not change with more nodes: a scheduler takes its place
    more_choice = replace(choice, name="backfill") if choice.name == "observed" else choice
    found = []
    for word in words.split(",") if words else ():
        name = word.strip()
        if re.fullmatch(r"\+\d{1,5}", name):
            last = question.nodes[-1]
            more = tuple(replace(last, name=f"{last.name}+{at}") for at in range(1, int(name) + 1))
            found.append((replace(plain, nodes=(*question.nodes, *more)), more_choice))
        elif name.lower() not in POLICIES:
            raise InputError(
                f"`compare` {shorten(name)!r} is neither a policy nor +N nodes; use {', '.join(POLICIES)}, or such as +4"
            )
        else:
            found.append((plain, replace(choice, name=name.lower(), placement="")))
    return found


def _zero_or_more(value: float, name: str) -> float:
    if not value >= 0:
        raise InputError(f"`{name}` {value:g} is out of range; give 0 or more")
    return value


def _positive(value: float, name: str) -> float:
    if value <= 0:
        raise InputError(f"`{name}` {value:g} is out of range; give a number above 0")
    return value
