"""One workload on one cluster under one policy, or several, from end to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from trilemma.errors import InputError, PlanWarning, shorten
from trilemma.simulation.cluster.event_loop import ClusterRun, QueuePolicy, RunRules
from trilemma.simulation.cluster.figures import outcome_of
from trilemma.simulation.cluster.gangs import holds_ever
from trilemma.simulation.cluster.jobs import ClusterJob, GangShape
from trilemma.simulation.cluster.nodes import ClusterNode
from trilemma.simulation.cluster.outcome import PolicyOutcome
from trilemma.simulation.cluster.placement import TightestPlacement, placement_of
from trilemma.simulation.cluster.policies.cells import CellLine
from trilemma.simulation.cluster.policies.fair_share import FairShareLine
from trilemma.simulation.cluster.policies.kueue import CohortLine
from trilemma.simulation.cluster.policies.lines import OpenLine
from trilemma.simulation.cluster.policies.observed import ObservedLine, as_observed, seat
from trilemma.simulation.cluster.policies.paced_kueue import ControlPlane, PacedCohortLine
from trilemma.simulation.cluster.policies.shapes import shapes_of
from trilemma.simulation.cluster.policies.strict import BackfillLine, StrictLine
from trilemma.simulation.cluster.quotas import QueueQuota, QuotaTree
from trilemma.simulation.cluster.state import ClusterState
from trilemma.simulation.cluster.virtual_cells import CellQuota


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyChoice:
    """A policy by name, the rule by which it places, and whether it makes lower priorities leave."""

    name: str
    placement: str = ""
    yields: bool = False
    plane: ControlPlane | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterQuestion:
    """Nodes, jobs, queues and rules: all that a policy is asked with. ``begun``: jobs that are seen to run run from the start."""

    nodes: tuple[ClusterNode, ...]
    jobs: tuple[ClusterJob, ...]
    queues: tuple[QueueQuota, ...] = ()
    cells: tuple[CellQuota, ...] = ()
    rules: RunRules = field(default_factory=RunRules)
    source: str = "the jobs"
    notes: tuple[PlanWarning, ...] = ()
    begun: bool = False


class _Known:
    """What a name stands for: an order of jobs and a rule of placement."""

    def __init__(self, order: type[OpenLine] | type[ObservedLine], placement: str) -> None:
        self.order, self.placement = order, placement


#: Policies by name.
POLICIES: Mapping[str, _Known] = {
    "fifo": _Known(StrictLine, "tightest"),
    "backfill": _Known(BackfillLine, "tightest"),
    "first-fit": _Known(OpenLine, "tightest"),
    "random": _Known(OpenLine, "random"),
    "best-fit": _Known(OpenLine, "best-fit"),
    "packing": _Known(OpenLine, "packing"),
    "fgd": _Known(OpenLine, "fgd"),
    "kueue": _Known(CohortLine, "least-free"),
    "kai": _Known(FairShareLine, "tightest"),
    "hived": _Known(CellLine, "tightest"),
    "observed": _Known(ObservedLine, "tightest"),
}


def run_policy(question: ClusterQuestion, choice: PolicyChoice) -> tuple[ClusterRun, PolicyOutcome]:
    """Run ``question`` under one policy to its end."""
    began = time.perf_counter()
    state = ClusterState(question.nodes)
    if not state.capacity_units:
        raise InputError("the nodes have neither GPUs nor CPUs; give at least one")
    if choice.name == ObservedLine.name:
        jobs, last = as_observed(question.jobs)
        until = last if question.rules.until_ticks is None else question.rules.until_ticks
        question = replace(
            question, jobs=jobs, queues=(), rules=replace(question.rules, until_ticks=until, slowdown={})
        )
    quotas = QuotaTree(question.queues, state.capacity_units)
    if choice.name != ObservedLine.name:
        refuse_impossible(question, state, quotas)
    run = ClusterRun(state, question.jobs, quotas, question.rules, made(choice, question))
    if question.begun:
        seat(run)
    run.go()
    return run, outcome_of(run, choice.name, time.perf_counter() - began)


def made(choice: PolicyChoice, question: ClusterQuestion) -> Callable[[ClusterRun], QueuePolicy]:
    """The policy of a choice, for a run."""
    if choice.name not in POLICIES:
        raise InputError(f"`policy` {shorten(choice.name)!r} is not known; use {', '.join(POLICIES)}")
    known = POLICIES[choice.name]
    rule: type[TightestPlacement] = placement_of(choice.placement or known.placement)

    if choice.name == CellLine.name and not question.cells:
        raise InputError(
            "`policy` hived needs cells: give `nodes` as a HiveD configuration (physicalCluster, virtualClusters)"
        )

    def policy(run: ClusterRun) -> QueuePolicy:
        places = rule(run.state, [one.shape for one in question.jobs], choice.seed)
        if choice.name == CellLine.name:
            return CellLine(run, places, question.cells)
        if choice.plane is not None and known.order is CohortLine:
            return PacedCohortLine(run, places, choice.plane, yields=choice.yields)
        return known.order(run, places, yields=choice.yields)

    return policy


def compare_policies(
    questions: Sequence[tuple[ClusterQuestion, PolicyChoice]], *, processes: int
) -> list[PolicyOutcome]:
    """The outcome of each, over ``processes`` where there are several."""
    if processes < 2 or len(questions) < 2:
        return [run_policy(*one)[1] for one in questions]
    with ProcessPoolExecutor(min(processes, len(questions))) as pool:
        return list(pool.map(_outcome, questions))


def _outcome(asked: tuple[ClusterQuestion, PolicyChoice]) -> PolicyOutcome:
    return run_policy(*asked)[1]


def refuse_impossible(question: ClusterQuestion, state: ClusterState, quotas: QuotaTree) -> None:
    """Raises `InputError` for a job that the idle cluster, or its queue's quota, cannot hold."""
    known: dict[GangShape, bool] = {}
    for job in question.jobs:
        where = f"{job.where}: " if job.where else ""
        if job.shape not in known:
            known[job.shape] = any(holds_ever(state, one) for one in shapes_of(job.shape))
        if not known[job.shape]:
            shape = job.shape
            each = f"{shape.pods} x {shape.gpus}" if shape.pods > 1 else f"{shape.gpus}"
            extra = f" on {'|'.join(shape.models)}" if shape.models else ""
            extra += f" within one {shape.within}" if shape.within and shape.strict else ""
            raise InputError(
                f"{where}job {shorten(job.name, most=40)} asks for {each} GPUs{extra}, more than the whole cluster can place;"
                " make it smaller, leave it out, or give more nodes"
            )
        try:
            node = quotas.queue(job.queue)
        except InputError as error:
            raise InputError(f"{where}job {shorten(job.name, most=40)}: {error}") from None
        units = job.shape.units(state.of_cpus)
        if node is not None and not (node.quota.nominal is None and node.parent is None) and node.could_take() < units:
            raise InputError(
                f"{where}job {shorten(job.name, most=40)} asks for {units / 1000:g} GPUs, queue {job.queue} may have"
                f" {node.could_take() / 1000:g}; raise its quota or its borrowing"
            )
