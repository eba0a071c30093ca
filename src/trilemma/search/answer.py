"""One plan judged, and where it does not start, the cheapest changes with which it would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trilemma.estimate.estimate import Estimate
from trilemma.estimate.serving import estimate
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import Plan
from trilemma.workloads import Serving


def with_remedies(
    answer: Estimate,
    *,
    model: Model,
    cluster: Cluster,
    workload: Serving,
    plan: Plan,
    gpus: int | None = None,
    free_bytes: float | None = None,
) -> Estimate:
    """``answer`` with up to three verified remedies where its plan does not start; ``gpus`` are at hand. Pools apart have
    none of their own: each is a plan to ask about."""
    if answer.verdict.stage == "ok" or len(plan.pools) > 1:
        return answer
    from trilemma.search.remedies import remedies  # a plan that fits needs none

    evaluate = evaluator(cluster, workload, free_bytes=free_bytes)
    found = remedies(
        evaluate, plan=plan, model=model, accelerator=cluster.accelerator, workload=workload, gpus=gpus or cluster.gpus,
        failing=answer,
    )  # fmt: skip
    return replace(answer, remedies=found)


def evaluator(
    cluster: Cluster, workload: Serving, *, free_bytes: float | None = None
) -> Callable[[Plan, Model], Estimate]:
    """Prices a plan of any size on cards of ``cluster``'s kind: the layout says how many it takes."""

    def evaluate(plan: Plan, model: Model) -> Estimate:
        sized = replace(cluster, gpus=int(plan.gpus))
        return estimate(model=model, cluster=sized, workload=workload, plan=plan, free_bytes=free_bytes)

    return evaluate
