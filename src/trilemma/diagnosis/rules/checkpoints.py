"""A host that runs out of memory while a checkpoint is written: the write buckets of all ranks lie there at once."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.kernel_log import KIND as KERNEL
from trilemma.diagnosis.readers.training_log import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.plans import Plan

#: A checkpoint to resume from: weights and two moments with their FP32 copy, or fewer (radixark/Megatron-LM pull request 61: 14).
_BYTES_PER_PARAMETER = 14


def _judge(case: Case) -> Iterator[Finding]:
    killed = [
        (file, event)
        for file, part in case.parts(KERNEL)
        for event in part.events
        if event.name == "host-out-of-memory"
    ]
    for file, part in case.parts(KIND):
        saves = [event for event in part.events if event.name == "checkpoint"]
        if not killed or not saves:
            continue
        where, event = killed[0]
        staged = ""
        expectation = case.expectations.get(file)
        if expectation is not None and not isinstance(expectation.answer.question.plan, Plan):
            question = expectation.answer.question
            parameters = sum(tensor.elements for tensor in question.model.tensors)
            size = parameters * _BYTES_PER_PARAMETER / question.cluster.nodes / 1e9
            staged = f"; {size:,.0f} GB a node are staged ({_BYTES_PER_PARAMETER} bytes a parameter over "
            f"{question.cluster.nodes} nodes)"
        yield Finding(
            id="host.checkpoint-staging", role="root", severity="error",
            claim="the host ran out of memory while a checkpoint was written: all write buckets are staged there at "
            f"once{staged}",
            evidence=(Evidence(file=file, line=saves[-1].line, value=saves[-1].values["text"]),
                      Evidence(file=where, line=event.line, value=event.values["text"])),
            expected="room for the staged part of the checkpoint", observed=event.values["text"], confidence="supported",
            fix="write in waves or asynchronously with fewer buckets in flight, or from more nodes",
        )  # fmt: skip


RULE = Rule(needs=(KIND, KERNEL), judge=_judge)
