"""The ledger beside an allocation that failed: what the plan needs line by line, and changes with which it would fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trilemma.diagnosis.expectation import Expectation
from trilemma.estimate.estimate import Estimate, Remedy
from trilemma.hardware.accelerator import Figure
from trilemma.plans import Plan
from trilemma.quantities import GIB, counted
from trilemma.question import Question

#: Formats of logits in bytes: 16 bits, and the FP32 copy of the loss.
_LOGIT_BYTES = (2, 4)
_PRINTED = 0.005


def ledger_words(answer: Estimate) -> str:
    """ "weights 14.96 + activations 3.20 + … = 21.4 of 79.19 GiB", the lines of the estimate of the worst rank."""
    lines = [(line.name, float(line.bytes)) for line in answer.memory.ledger if float(line.bytes) >= 0.005 * GIB]
    named = " + ".join(f"{name.replace('_', ' ')} {size / GIB:.2f}" for name, size in lines)
    return f"{named} = {answer.memory.total.value / GIB:.2f} of {answer.memory.capacity_bytes / GIB:.2f} GiB"


def remedies_of(expectation: Expectation, values: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """Changes that fit although the run needs more than the ledger says: they are sought on a card that is smaller by what
    the ledger does not know of, so that the plan fails there as it did in the run."""
    answer = expectation.answer
    if not answer.fits:
        return answer.remedies
    capacity, free = values.get("capacity_bytes"), values.get("free_bytes")
    request = values.get("request_bytes") or 0
    if not capacity or free is None or answer.memory.total.value <= 0:
        return ()
    unknown = (capacity - free + request) - answer.memory.total.value
    left = answer.memory.capacity_bytes - max(unknown, 0.0)
    if left < 0.01 * capacity:
        return ()
    question = answer.question
    if isinstance(question.plan, Plan):
        return _leaner(expectation, left)
    figure = Figure(value=left, source="the card less what the failed run held beyond the ledger")
    card = replace(question.cluster.accelerator, runtime_total_bytes=figure)
    smaller = expectation.priced(replace(question, cluster=replace(question.cluster, accelerator=card)))
    return () if smaller is None or smaller.fits else smaller.remedies


def _leaner(expectation: Expectation, most_bytes: float) -> tuple[Remedy, ...]:
    """Options of a serving engine with which everything that it holds stays within ``most_bytes`` of the card."""
    question: Question[Any, Any] = expectation.answer.question
    plan, start = question.plan, expectation.answer.start_up
    over = expectation.answer.memory.total.value - most_bytes
    share = start.get("memory_fraction")
    lower = None if share is None else int((share - over / expectation.answer.memory.capacity_bytes) * 100) / 100
    tries: list[tuple[str, dict[str, Any]]] = []
    if lower is not None and lower > 0:
        tries.append((f"memory fraction {lower:g} instead of {share:g}", {"memory_fraction": lower}))
        tries.append(
            (f"memory fraction {lower:g} and an FP8 cache", {"memory_fraction": lower, "kv_dtype": "fp8"}),
        )
        for sequences in (64, 16):
            words = f"memory fraction {lower:g} and at most {counted(sequences, 'sequence')} at once"
            tries.append((words, {"memory_fraction": lower, "max_seqs": sequences}))
    tries.append(("no CUDA graphs (slower decode)", {"eager": True}))
    found: list[Remedy] = []
    for words, options in tries:
        pool = replace(plan.pool, options=replace(plan.pool.options, **options))
        answer = expectation.priced(replace(question, plan=replace(plan, pools=(pool,))))
        if answer is None or not answer.fits or answer.memory.total.value > most_bytes or answer.cache is None:
            continue
        effect = f"holds {answer.memory.total.value / GIB:.2f} GiB, a cache of {answer.cache.tokens.value:,.0f} tokens"
        found.append(Remedy(change=words, flags=answer.command or "", effect=effect, cost_rank=float(len(found))))
    return tuple(found[:3])


def logits_in(request_bytes: float, answer: Estimate) -> str | None:
    """That a request is the logits of whole sequences, where its size says so: tokens · vocabulary · bytes."""
    model, plan = answer.question.model, answer.question.plan
    if isinstance(plan, Plan):
        return None
    seq, tp = answer.question.workload.seq, int(plan.layout.tp)
    found: list[tuple[int, int]] = []
    for size in _LOGIT_BYTES:
        sequence = seq * model.vocab * size / tp
        times = round(request_bytes / sequence)
        if times >= 1 and abs(request_bytes - times * sequence) <= max(_PRINTED * GIB, 0.002 * sequence):
            found.append((times, size))
    if not found:
        return None
    times, size = min(found, key=lambda one: abs(one[0] - int(plan.micro_batch)))
    return (
        f"the request is {counted(times, 'sequence')} of {seq:,} tokens by {model.vocab // tp:,} logits of {size} bytes:"
        " a fused or chunked loss does not hold them"
    )


def told(remedies: tuple[Remedy, ...]) -> tuple[str | None, str | None]:
    """(the changes with their words, what each gives), numbered."""
    if not remedies:
        return None, None
    fix = "; ".join(f"{at}. {one.change}: {one.flags}" for at, one in enumerate(remedies, start=1))
    effect = "; ".join(f"{at}. {one.effect}" for at, one in enumerate(remedies, start=1))
    return fix, effect
