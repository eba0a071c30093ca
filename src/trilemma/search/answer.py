"""One plan judged, and where it does not start, the cheapest changes with which it would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trilemma.estimate.estimate import Estimate
from trilemma.estimate.serving import estimate
from trilemma.models.architecture import Model
from trilemma.plans import Plan
from trilemma.question import Question, ServingQuestion


def with_remedies(answer: Estimate, *, gpus: int | None = None) -> Estimate:
    """``answer`` with up to three verified remedies where its plan does not start; ``gpus`` are at hand. Pools apart have
    none of their own: each is a plan to ask about."""
    question: ServingQuestion = answer.question
    if answer.verdict.stage == "ok" or len(question.plan.pools) > 1:
        return answer
    from trilemma.search.remedies import remedies  # a plan that fits needs none

    found = remedies(evaluator(question), question, gpus=gpus or question.cluster.gpus, failing=answer)
    return replace(answer, remedies=found)


def evaluator(question: ServingQuestion) -> Callable[[Plan, Model], Estimate]:
    """Prices another plan of the question, of any size: its layout says how many cards of the same kind it takes."""

    def evaluate(plan: Plan, model: Model) -> Estimate:
        return estimate(
            Question(
                model=model,
                cluster=replace(question.cluster, gpus=int(plan.gpus)),
                workload=question.workload,
                plan=plan,
                free_bytes=question.free_bytes,
                terms=question.terms,
            )
        )

    return evaluate
