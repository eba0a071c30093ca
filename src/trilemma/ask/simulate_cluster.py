"""A shared cluster simulated, as an answer that shows itself: what jobs wait and where the hours of the cards go."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trilemma.ask.answers import Shown
from trilemma.ask.cluster_options import CLUSTER, CLUSTER_OPTIONS
from trilemma.ask.cluster_words import asked_job, control_plane, node_failures, slowdowns
from trilemma.ask.options import settled
from trilemma.ask.screen import screen_width
from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.simulation.cluster.drawn_jobs import demanding, draw_jobs, faster
from trilemma.simulation.cluster.event_loop import ClusterRun, RunRules
from trilemma.simulation.cluster.figures import space_time
from trilemma.simulation.cluster.jobs import TICKS, ClusterJob, ticks
from trilemma.simulation.cluster.kueue_scenarios import read_scenario
from trilemma.simulation.cluster.manifests import read_node_manifests, read_queue_manifests
from trilemma.simulation.cluster.nodes import ClusterNode, uniform_nodes
from trilemma.simulation.cluster.outcome import ClusterSimulation
from trilemma.simulation.cluster.quotas import QueueQuota
from trilemma.simulation.cluster.simulation import POLICIES, ClusterQuestion, PolicyChoice, compare_policies, run_policy
from trilemma.simulation.cluster.tables import JobDefaults, read_jobs, read_nodes, read_queues
from trilemma.simulation.cluster.virtual_cells import CellQuota, read_cells, states_cells
from trilemma.simulation.cluster.wait_estimate import wait_estimate

_UNIFORM = re.compile(r"(\d{1,6})x(\d{1,4})(?::(\d{1,4}))?(?::(\d{1,4}))?")
_DRAWN = re.compile(r"([a-z][a-z-]*):(\d{1,8})")
#: Jobs up to which the picture of space and time is kept without being asked for.
_PICTURED = 200_000


def simulate_cluster(nodes: Any = None, jobs: Any = None, **options: Any) -> ClusterSimulated:
    """A cluster over time: waits by gang size and queue, GPU-hours by state, what other policies or more nodes would give.

    ``simulate_cluster("64x8", "philly:5000", policy="backfill")``; ``nodes``, ``jobs`` and ``queues`` are tables, or short words.
    """
    asked = settled(CLUSTER, {"nodes": nodes, "jobs": jobs, **options}, CLUSTER_OPTIONS)
    if asked.wait is not None:
        asked_job(asked.wait)
    question = _question(asked)
    choice = PolicyChoice(
        name=str(asked.policy).lower(),
        placement=asked.placement or "",
        yields=asked.preempt,
        seed=asked.seed or 0,
        plane=control_plane(asked.control_plane),
    )
    run, outcome = run_policy(question, choice)
    compared = compare_policies(_others(question, choice, asked.compare), processes=asked.processes)
    if asked.per_job is not None:
        _write_jobs(run, Path(str(asked.per_job)))
    return ClusterSimulated.of(
        ClusterSimulation(
            inputs=_inputs(asked, question),
            jobs=len(question.jobs),
            outcome=outcome,
            wait=None if asked.wait is None else wait_estimate(run, *asked_job(asked.wait)),
            compared=tuple(compared),
            warnings=_warnings(question),
            picture=space_time(run) if question.rules.keeps_stretches else None,
        )
    )


def _question(asked: SimpleNamespace) -> ClusterQuestion:
    if asked.jobs is None:
        raise InputError("`jobs` is missing; give a table, philly:N or kalos:N")
    cells: tuple[CellQuota, ...] = ()
    scenario = read_scenario(Path(str(asked.jobs))) if str(asked.jobs).endswith((".yaml", ".yml")) else None
    if scenario is None and asked.nodes is None:
        raise InputError("`nodes` is missing; give a table, or nodes and GPUs as 64x8")
    if scenario is not None:
        nodes, queues = list(scenario.nodes), scenario.queues
    if asked.nodes is not None:
        nodes, cells, stated = _nodes(asked.nodes)
        queues = queues if scenario is not None else stated
    node_gpus = max(one.gpus for one in nodes)
    if asked.queues is not None:
        path = Path(str(asked.queues))
        is_manifest = path.suffix in (".yaml", ".yml")
        queues = tuple(read_queue_manifests(path) if is_manifest else read_queues(path, node_gpus))
    jobs = _jobs(asked, nodes) if scenario is None else list(scenario.jobs)
    until = None if asked.until is None else ticks(_positive(asked.until, "until") * 3600)
    rules = RunRules(
        until_ticks=until, failures=node_failures(asked.failures, asked.seed or 0), slowdown=slowdowns(asked.slowdown),
        keeps_stretches=len(jobs) <= _PICTURED,
    )  # fmt: skip
    source = Path(str(asked.jobs)).name
    return ClusterQuestion(nodes=tuple(nodes), jobs=tuple(jobs), queues=queues, cells=cells, rules=rules, source=source)


def _nodes(given: Any) -> tuple[list[ClusterNode], tuple[CellQuota, ...], tuple[QueueQuota, ...]]:
    """The nodes, and the cells and queues that come with them."""
    found, path = _UNIFORM.fullmatch(str(given)), Path(str(given))
    if found is None and path.suffix in (".yaml", ".yml"):
        if not states_cells(path):
            return read_node_manifests(path), (), ()
        owned = read_cells(path)
        return list(owned.nodes), owned.cells, owned.queues
    if found is None:
        return read_nodes(path), (), ()
    many, gpus, per_rack, per_block = (int(one or 0) for one in found.groups())
    if not many or not gpus:
        raise InputError(f"`nodes` {given}: no node or no GPU; give one or more, such as 64x8")
    return uniform_nodes(many, gpus, per_rack=per_rack, per_block=per_block), (), ()


def _jobs(asked: SimpleNamespace, nodes: Sequence[ClusterNode]) -> list[ClusterJob]:
    gpus = sum(one.gpus for one in nodes)
    drawn = _DRAWN.fullmatch(str(asked.jobs))
    defaults = JobDefaults(checkpoint_s=asked.checkpoint, restart_s=asked.restart, divisible=asked.split)
    if drawn is None:
        jobs = read_jobs(Path(str(asked.jobs)), nodes, defaults)
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


def _others(
    question: ClusterQuestion, choice: PolicyChoice, words: str | None
) -> list[tuple[ClusterQuestion, PolicyChoice]]:
    """What is compared: other policies, and the same one with more nodes."""
    plain = replace(question, rules=replace(question.rules, keeps_stretches=False))
    found = []
    for word in words.split(",") if words else ():
        name = word.strip()
        if re.fullmatch(r"\+\d{1,5}", name):
            last = question.nodes[-1]
            more = tuple(replace(last, name=f"{last.name}+{at}") for at in range(1, int(name) + 1))
            found.append((replace(plain, nodes=(*question.nodes, *more)), replace(choice, name=choice.name)))
        elif name.lower() not in POLICIES:
            raise InputError(
                f"`compare` {shorten(name)!r} is neither a policy nor +N nodes; use {', '.join(POLICIES)}, or such as +4"
            )
        else:
            found.append((plain, replace(choice, name=name.lower(), placement="")))
    return found


def _warnings(question: ClusterQuestion) -> tuple[PlanWarning, ...]:
    if len(question.jobs) > 1 and not any(one.submit_ticks for one in question.jobs):
        message = f"{question.source} does not say when jobs come: all come at once, in its order"
        return (PlanWarning(code="all_at_once", message=message),)
    return ()


def _inputs(asked: SimpleNamespace, question: ClusterQuestion) -> dict[str, Any]:
    gpus = sum(one.gpus for one in question.nodes)
    return {
        "nodes": question.source if asked.nodes is None else Path(str(asked.nodes)).name,
        "jobs": question.source,
        "queues": len(question.queues),
        "gpus": gpus,
        "policy": str(asked.policy).lower(),
        "preempt": asked.preempt,
        "seed": asked.seed or 0,
        **({"demand": asked.demand} if asked.demand is not None else {}),
        **({"failures": asked.failures} if asked.failures is not None else {}),
    }


def _positive(value: float, name: str) -> float:
    if value <= 0:
        raise InputError(f"`{name}` {value:g} is out of range; give a number above 0")
    return value


def _write_jobs(run: ClusterRun, path: Path) -> None:
    """A line for each job: when it came, began and ended, what it lost."""
    names = (
        "job",
        "queue",
        "gpus",
        "submit_s",
        "start_s",
        "finish_s",
        "wait_s",
        "preemptions",
        "lost_s",
        "nodes",
        "span",
    )
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            if path.suffix == ".csv":
                lines.writerow(names)
            for one in run.runs:
                row = _job_line(one)
                if path.suffix == ".csv":
                    lines.writerow(["" if value is None else value for value in row])
                else:
                    print(json.dumps(dict(zip(names, row, strict=True))), file=file)
    except OSError as error:
        raise InputError(f"cannot write {shorten(str(path))}: {error.strerror or error}") from None


def _job_line(one: Any) -> tuple[Any, ...]:
    job = one.job
    times = [None if at is None else round(at / TICKS, 6) for at in (job.submit_ticks, one.first_start, one.finished)]
    wait = None if one.first_start is None else round((one.first_start - job.submit_ticks) / TICKS, 6)
    where = one.stretches[-1][2] if one.stretches else one.placed
    nodes = len({pod.node for pod in where})
    return (
        job.name,
        job.queue,
        job.shape.total_gpus,
        *times,
        wait,
        one.preemptions,
        round(one.lost / TICKS, 6),
        nodes,
        one.span,
    )


class ClusterSimulated(Shown, ClusterSimulation):
    """A simulation of a cluster that can show itself."""

    __slots__ = ()

    @property
    def fits(self) -> bool:
        """Whether every job was started; a cluster that is filled on purpose says yes."""
        return self.outcome.unstarted == 0 or bool(self.outcome.allocated_at_demand)

    def chart(self) -> dict[str, Any] | None:
        """A Vega-Lite specification: use of the cluster over space and time, and what waits."""
        from trilemma.report.charts import cluster_chart

        return cluster_chart(self)

    def show(self, *, explain: bool = False, width: int | None = None) -> str:
        from trilemma.report.cluster import render_cluster

        return render_cluster(self, explain=explain, width=width or screen_width())

    def __repr__(self) -> str:
        return f"<ClusterSimulated: {self.outcome.completed} of {self.jobs} jobs, {self.outcome.allocated_share:.1%} allocated>"

    __str__ = Shown.__str__


__all__ = ["ClusterSimulated", "simulate_cluster"]
