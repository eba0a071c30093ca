"""A shared cluster simulated, as an answer that shows itself: what jobs wait and where the hours of the cards go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trilemma.ask.answers import Shown
from trilemma.ask.cluster_export import export_cluster
from trilemma.ask.cluster_lines import write_jobs
from trilemma.ask.cluster_options import CLUSTER, CLUSTER_OPTIONS
from trilemma.ask.cluster_question import history_of, others_of, question_of
from trilemma.ask.cluster_trainings import with_better_plans
from trilemma.ask.cluster_words import asked_job, control_plane
from trilemma.ask.options import settled
from trilemma.ask.screen import screen_width
from trilemma.errors import InputError, PlanWarning
from trilemma.simulation.cluster.efficiency import efficiency_of
from trilemma.simulation.cluster.figures import space_time
from trilemma.simulation.cluster.outcome import ClusterSimulation, StartForecast
from trilemma.simulation.cluster.simulation import ClusterQuestion, PolicyChoice, compare_policies, run_policy
from trilemma.simulation.cluster.start_forecast import UsualLengths, forecast, still_there
from trilemma.simulation.cluster.usage import end_usage, idle_jobs, queue_usage
from trilemma.simulation.cluster.wait_estimate import wait_estimate


def simulate_cluster(nodes: Any = None, jobs: Any = None, **options: Any) -> ClusterSimulated:
    """A cluster over time: waits by gang size and queue, GPU-hours by state, what other policies or more nodes would give.

    ``simulate_cluster("64x8", "philly:5000", policy="backfill")``; ``nodes``, ``jobs`` and ``queues`` are tables, or short words.
    """
    asked = settled(CLUSTER, {"nodes": nodes, "jobs": jobs, **options}, CLUSTER_OPTIONS)
    if asked.wait is not None:
        asked_job(asked.wait)  # before jobs are read
    question = question_of(asked)
    if asked.wait is not None:
        _check_holds(question, asked.wait)
    choice = PolicyChoice(
        name=str(asked.policy).lower(),
        placement=asked.placement or "",
        yields=asked.preempt,
        seed=asked.seed or 0,
        plane=control_plane(asked.control_plane),
    )
    run, outcome = run_policy(question, choice)
    others = others_of(question, choice, asked.compare)
    compared = compare_policies(others, processes=asked.processes)
    moment = asked.wait is not None and still_there(question.jobs)
    foreseen = _foreseen(asked, question, choice, others) if moment else ()
    if asked.per_job is not None:
        write_jobs(run, Path(str(asked.per_job)))
    exported = () if asked.export is None else export_cluster(question, Path(str(asked.export)))
    return ClusterSimulated.of(
        ClusterSimulation(
            inputs=_inputs(asked, question),
            jobs=len(question.jobs),
            outcome=outcome,
            wait=None if asked.wait is None or moment else wait_estimate(run, *asked_job(asked.wait)[:2]),
            forecast=foreseen,
            compared=tuple(compared),
            efficiency=with_better_plans(efficiency_of(run), question.rules.timings),
            queues=queue_usage(run),
            ends=end_usage(run),
            idle_jobs=idle_jobs(run),
            warnings=(*_warnings(question), *question.notes),
            exported=exported,
            picture=space_time(run) if question.rules.keeps_stretches else None,
        )
    )


def _check_holds(question: ClusterQuestion, words: str) -> None:
    gpus, has = asked_job(words).gpus, sum(one.gpus for one in question.nodes)
    if gpus > has:
        raise InputError(f"`wait` {gpus:g} GPUs never start on the {has:,} of these nodes; ask for at most as many")


def _foreseen(
    asked: SimpleNamespace,
    question: ClusterQuestion,
    choice: PolicyChoice,
    others: list[tuple[ClusterQuestion, PolicyChoice]],
) -> tuple[StartForecast, ...]:
    """When the job that is asked for starts, as things are and with what is compared."""
    usual = UsualLengths.of((*history_of(asked, question.nodes), *question.jobs))
    base = replace(choice, name="backfill") if choice.name == "observed" else choice
    return forecast(
        question, [(question, base), *others], asked_job(asked.wait), usual, by_s=None if asked.by is None else asked.by * 3600,
        seed=asked.seed or 0, processes=asked.processes,
    )  # fmt: skip


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
