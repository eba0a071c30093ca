"""Whether products in a narrow format pay: by a second estimate in 16 bits, by two logs of the same job, by the casts of a trace.

Only matrix products are twice as fast; communication, small kernels and the optimizer stay (NVIDIA/Megatron-LM issue 396: 1.42
times for 13B on eight H100), and casts come on top, which decide where products are small (NVIDIA/TransformerEngine issue 445:
eleven times slower for 1024 x 1024; pytorch/torchtitan issue 2086: 0.953 times for experts of 1,408).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trilemma.diagnosis.expectation import Expectation
from trilemma.diagnosis.findings import Case, Evidence, Finding, Part
from trilemma.diagnosis.readers.kineto import KIND as TRACE
from trilemma.diagnosis.readers.training_log import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.diagnosis.rules.expected_training import tokens_per_s
from trilemma.estimate.estimate import Estimate
from trilemma.plans import Plan
from trilemma.plans.recipes import recipe

#: Below this gain a narrow format is not worth its risk to convergence.
_PAYS = 1.05
_WIDE = ("same", "bf16", "fp16", "fp32")
_SHOWN = 4


def _judge(case: Case) -> Iterator[Finding]:
    narrow = [(file, part, one) for file, part, one in _trainings(case) if not _is_wide(one.answer)]
    for file, part, expectation in narrow:
        wide = expectation.priced(_widened(expectation.answer))
        told = _gain(file, part, expectation, wide, _measured_gain(case, part, expectation))
        if told is not None:
            yield told
    for file, part in case.parts(TRACE):
        yield from _casts(file, part.facts)


def _trainings(case: Case) -> Iterator[tuple[str, Part, Expectation]]:
    for file, part in case.parts(KIND):
        expectation = case.expectations.get(file)
        if expectation is not None and not isinstance(expectation.answer.question.plan, Plan):
            yield file, part, expectation


def _is_wide(answer: Estimate) -> bool:
    return str(answer.question.plan.recipe.matmul) in _WIDE


def _widened(answer: Estimate) -> Any:
    """The same question with products in BF16."""
    plan = answer.question.plan
    return replace(answer.question, plan=replace(plan, recipe=recipe("bf16")))


def _step_s(answer: Estimate | None) -> float | None:
    return (
        None
        if answer is None or answer.speed is None or answer.speed.step_s is None
        else answer.speed.step_s.interval.value
    )


def _measured_gain(case: Case, part: Part, narrow: Expectation) -> tuple[float, str] | None:
    """How much faster this log is than one of the same job in 16 bits, where that lies beside it, and that log's name."""
    fast = tokens_per_s(part.facts, narrow.answer)
    for file, other, expectation in _trainings(case):
        same = expectation.answer.question.model.name == narrow.answer.question.model.name
        if same and _is_wide(expectation.answer) and fast and (slow := tokens_per_s(other.facts, expectation.answer)):
            return fast / slow, file
    return None


def _gain(
    file: str, part: Part, expectation: Expectation, wide: Estimate | None, measured: tuple[float, str] | None
) -> Finding | None:
    now, then = _step_s(expectation.answer), _step_s(wide)
    if now is None or then is None or wide is None or wide.speed is None:
        return None
    gain = then / now
    name = expectation.answer.question.plan.recipe.name
    lines = wide.speed.lines
    products = lines.get("linear", 0.0)
    rest = sorted(((key, one) for key, one in lines.items() if key != "linear"), key=lambda one: -one[1])[:_SHOWN]
    stays = ", ".join(f"{key.replace('_', ' ')} {seconds:.3g} s" for key, seconds in rest)
    pays = (measured[0] if measured else gain) >= _PAYS
    said = f"; measured {measured[0]:.2f} times as fast as {measured[1]}" if measured else ""
    return Finding(
        id="speed.low-precision-gain",
        role="context" if pays else "root",
        severity="context" if pays else "warning",
        claim=f"{name} {'makes' if pays else 'does not pay:'} this step {gain:.2f} times as fast as BF16"
        f"{' and not twice' if pays else ''}{said}: matrix products are {products:.3g} of {then:.3g} s in BF16, the rest stays"
        f" ({stays})",
        evidence=(Evidence(file=file, line=next((one.line for one in part.events if one.name == "step"), None),
                           value=expectation.said),),
        expected=f"{gain:.2f} times as fast",
        observed=f"{measured[0]:.2f} times as fast" if measured else None,
        confidence="supported",
        fix="larger products (more tokens a micro-batch, less tensor parallelism), the shares above made smaller" if pays
        else "stay with BF16 here; low precision pays where products are large",
        predicted_effect=None if pays else f"a step of {then:.3g} s in BF16",
    )  # fmt: skip


def _casts(file: str, facts: Any) -> Iterator[Finding]:
    """Casts of a trace that take longer than the products they are for: products in 16 bits take at most twice as long."""
    kinds = facts.get("kernel_ms_by_kind") or {}
    casts, products = kinds.get("quantise", 0.0), kinds.get("gemm", 0.0) + kinds.get("moe", 0.0)
    if not products or casts < products:
        return
    yield Finding(
        id="speed.casts-above-products", role="root", severity="warning",
        claim=f"casts to a narrow format take {casts:.3g} ms and the matrix products {products:.3g} ms: in 16 bits the products "
        f"would take at most {2 * products:.3g} ms and no cast, so low precision does not pay for these shapes",
        evidence=(Evidence(file=file, value=f"quantise {casts:.3g} ms, products {products:.3g} ms"),),
        expected=f"less than {products:.3g} ms of casts", observed=f"{casts:.3g} ms", confidence="supported",
        fix="products of more rows (larger batches), casts fused into the kernels before them, or 16 bits for these layers",
        predicted_effect=f"{(casts + products) / (2 * products):.2f} times as fast or more in 16 bits, of this part",
    )  # fmt: skip


RULE = Rule(needs=(KIND, TRACE), judge=_judge)
