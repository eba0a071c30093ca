"""A cache that every tensor-parallel rank holds whole: one key and value head cannot be split (vllm-project/vllm issue 51454: at
a million tokens 20.4 requests with eight tensor-parallel ranks, 156.9 with eight replicas of attention)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trilemma.diagnosis.expectation import Expectation
from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.engine_start import KIND as START
from trilemma.diagnosis.readers.serving_load import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.estimate.estimate import Estimate
from trilemma.plans import Plan

#: Less than this is not worth another layout.
_WORTH = 1.5


def _judge(case: Case) -> Iterator[Finding]:
    told: set[str] = set()
    for kind in (START, KIND):
        for file, _ in case.parts(kind):
            expectation = case.expectations.get(file)
            if expectation is not None and file not in told:
                told.add(file)
                yield from _copied(file, expectation)


def _copied(file: str, expectation: Expectation) -> Iterator[Finding]:
    plan = expectation.answer.question.plan
    if not isinstance(plan, Plan) or len(plan.pools) != 1:
        return
    layout = plan.pool.layout
    tp, dp = int(layout.tp), int(layout.dp)
    now = _tokens(expectation.answer)
    if tp == 1 or int(layout.dcp) > 1 or not now:
        return
    spread = replace(layout, tp=1, dp=dp * tp, ep=tp * dp if int(layout.ep) > 1 else int(layout.ep))
    question: Any = replace(expectation.answer.question, plan=replace(plan, pools=(replace(plan.pool, layout=spread),)))
    then = _tokens(expectation.priced(question))
    if not then or then < _WORTH * now:
        return
    yield Finding(
        id="serving.copied-cache", role="root", severity="warning",
        claim=f"each of {tp} tensor-parallel ranks holds the cache of all requests whole: its heads cannot be split that far",
        evidence=(Evidence(file=file, value=expectation.said),), expected=f"{then:,.0f} tokens of cache over {tp * dp} GPUs",
        observed=f"{now:,.0f} tokens", confidence="supported",
        fix=f"{tp * dp} replicas of attention with the experts spread over all (data parallelism {tp * dp}, expert parallelism), "
        f"or decode context parallelism {tp}",
        predicted_effect=f"{then / now:.1f} times as many tokens in the cache",
    )  # fmt: skip


def _tokens(answer: Estimate | None) -> float | None:
    """Tokens that the caches of all replicas hold; None where the plan does not start."""
    if answer is None or answer.cache is None or not answer.fits:
        return None
    return float(answer.cache.tokens.value) * int(answer.question.plan.pool.layout.dp)


RULE = Rule(needs=(START, KIND), judge=_judge)
