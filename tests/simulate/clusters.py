"""Small clusters for tests: nodes, jobs and runs in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trilemma.simulation.cluster.event_loop import ClusterRun, RunRules
from trilemma.simulation.cluster.jobs import TICKS, ClusterJob, GangShape
from trilemma.simulation.cluster.nodes import ClusterNode, uniform_nodes
from trilemma.simulation.cluster.outcome import PolicyOutcome
from trilemma.simulation.cluster.quotas import QueueQuota
from trilemma.simulation.cluster.simulation import ClusterQuestion, PolicyChoice, run_policy
from trilemma.simulation.cluster.virtual_cells import CellQuota


def job(
    name: str, gpus: int = 1, work_s: float | None = 100.0, *, at_s: float = 0.0, pods: int = 1, **more: Any
) -> ClusterJob:
    """``pods`` of ``gpus`` each; what is of the shape goes there."""
    of_shape = {one: more.pop(one) for one in list(more) if one in GangShape.__dataclass_fields__}
    for one in ("checkpoint", "restart", "limit"):
        if f"{one}_s" in more:
            more[f"{one}_ticks"] = round(more.pop(f"{one}_s") * TICKS)
    return ClusterJob(
        name=name, submit_ticks=round(at_s * TICKS), work_ticks=None if work_s is None else round(work_s * TICKS),
        shape=GangShape(pods=pods, gpus=gpus, **of_shape), **more,
    )  # fmt: skip


def simulated(
    nodes: int | Sequence[ClusterNode], jobs: Sequence[ClusterJob], policy: str = "first-fit", *, gpus: int = 8,
    queues: Sequence[QueueQuota] = (), cells: Sequence[CellQuota] = (),
    yields: bool = False, rules: RunRules | None = None, placement: str = "", seed: int = 0,
) -> tuple[ClusterRun, PolicyOutcome]:  # fmt: skip
    machines = uniform_nodes(nodes, gpus) if isinstance(nodes, int) else list(nodes)
    rules = replace(rules or RunRules(), keeps_stretches=True)
    question = ClusterQuestion(
        nodes=tuple(machines), jobs=tuple(jobs), queues=tuple(queues), cells=tuple(cells), rules=rules
    )
    return run_policy(question, PolicyChoice(name=policy, placement=placement, yields=yields, seed=seed))


def waits(run: ClusterRun) -> dict[str, float | None]:
    """Seconds that each job waited; None for those that never began."""
    return {
        one.job.name: None if one.first_start is None else (one.first_start - one.job.submit_ticks) / TICKS
        for one in run.runs
    }


def spans(run: ClusterRun) -> dict[str, int]:
    """Nodes that each job ran on at last."""
    return {one.job.name: len({pod.node for pod in one.stretches[-1][2]}) for one in run.runs if one.stretches}
