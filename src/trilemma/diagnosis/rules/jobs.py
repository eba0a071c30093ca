"""What the scheduler says of jobs and nodes: killed for memory, nodes that failed, nodes that take no work."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Event, Evidence, Finding
from trilemma.diagnosis.readers.slurm import KIND
from trilemma.diagnosis.readers.slurm_accounting import KIND as ACCOUNTING
from trilemma.diagnosis.rules import Rule

_ENDS = {
    "OUT_OF_MEMORY": ("host.out-of-memory", "root", "error", "was killed because the host memory that it asked for was full",
                      "ask for more memory (--mem), or hold less there: fewer loader workers, no optimizer offload"),
    "NODE_FAIL": ("host.node-failed", "root", "error", "ended because a node failed",
                  "drain that node; look at its kernel log and at its GPUs"),
    "BOOT_FAIL": ("host.node-failed", "root", "error", "ended because a node did not boot", "drain that node"),
    "TIMEOUT": ("job.time-limit", "symptom", "warning", "reached its time limit",
                "a longer limit, or checkpoints that a next job resumes from"),
    "PREEMPTED": ("job.preempted", "context", "context", "was preempted by another job", None),
    "FAILED": ("job.failed", "symptom", "warning", "failed", "its own log says why"),
}  # fmt: skip
_SHOWN = 5
_UNWELL = ("DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "ERROR")


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(ACCOUNTING):
        yield from _ended(file, part.events)
    for file, part in case.parts(KIND):
        jobs = [Event(name="job", line=None, values={
            "job": one.values["job_id"], "state": one.values["states"][0] if one.values["states"] else "",
            "exit_code": one.values["exit_code"], "text": one.values["state_reason"] or one.values["name"],
        }) for one in part.events if one.name == "job"]  # fmt: skip
        yield from _ended(file, tuple(jobs))
        nodes = [one for one in part.events if one.name == "node" and any(
            word in state for state in one.values["states"] for word in _UNWELL)]  # fmt: skip
        if nodes:
            told = "; ".join(
                f"{one.values['name']}: {one.values['reason'] or 'no reason given'}" for one in nodes[:_SHOWN]
            )
            yield Finding(
                id="cluster.nodes-out", role="context", severity="context",
                claim=f"{len(nodes)} nodes take no work: {told}",
                evidence=tuple(Evidence(file=file, value=f"{one.values['name']} {', '.join(one.values['states'])}")
                               for one in nodes[:_SHOWN]),
                observed=f"{len(nodes)} nodes down or drained", confidence="established",
            )  # fmt: skip


def _ended(file: str, events: tuple[Event, ...]) -> Iterator[Finding]:
    for state, (name, role, severity, words, fix) in _ENDS.items():
        those = {one.values["job"]: one for one in events if one.values["state"] == state}
        if not those:
            continue
        listed = ", ".join(list(those)[:_SHOWN])
        yield Finding(
            id=name, role=role, severity=severity,  # type: ignore[arg-type]
            claim=f"{'job' if len(those) == 1 else f'{len(those)} jobs,'} {listed} {words}",
            evidence=tuple(Evidence(file=file, line=one.line, value=one.values["text"]) for one in list(those.values())[:_SHOWN]),
            observed=state, confidence="established", fix=fix,
        )  # fmt: skip


RULE = Rule(needs=(KIND, ACCOUNTING), judge=_judge)
