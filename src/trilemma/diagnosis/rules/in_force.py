"""Values asked for in a command beside those in force in the log of its run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trilemma.diagnosis.findings import Case, Evidence, Finding
from trilemma.diagnosis.readers.engine_start import KIND
from trilemma.diagnosis.rules import Rule
from trilemma.plans import Plan

#: What a log states → (words, what the plan asks for).
_STATED = (
    ("max_seq_len", "context"), ("context_length", "context"), ("tensor_parallel_size", "tp"), ("tp_size", "tp"),
    ("pipeline_parallel_size", "pp"), ("data_parallel_size", "dp"), ("dp_size", "dp"),
)  # fmt: skip


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        expectation = case.expectations.get(file)
        if expectation is None or part.whole is None or not isinstance(expectation.answer.question.plan, Plan):
            continue
        pool = expectation.answer.question.plan.pool
        asked: dict[str, Any] = {
            "context": pool.options.context, "tp": pool.layout.tp, "pp": pool.layout.pp, "dp": pool.layout.dp,
        }  # fmt: skip
        stated = {**part.whole.config, **part.whole.arguments}
        for name, field in _STATED:
            wanted, there = asked[field], _number(stated.get(name))
            if wanted is None or there is None or int(wanted) == there:
                continue
            yield Finding(
                id="configuration.not-in-force", role="root", severity="warning",
                claim=f"the command asks for {field} {int(wanted):,}, the log says {name} {there:,}",
                evidence=(Evidence(file=file, value=f"{name}={there}"),), expected=f"{int(wanted):,}", observed=f"{there:,}",
                confidence="supported", fix="is it the log of this command? else a file, a variable or a later flag changes it",
            )  # fmt: skip


def _number(value: Any) -> int | None:
    text = str(value) if value is not None and not isinstance(value, bool) else ""
    return int(text) if text.isdecimal() and len(text) < 13 else None


RULE = Rule(needs=(KIND,), judge=_judge)
