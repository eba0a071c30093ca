"""Where the time of a trace goes, and how its ranks differ.

One trace alone says what share each kind of time has, which is no fault yet: a small model leaves any GPU idle. What is told
as a warning: communication exposed for more than `_EXPOSED` of the span, and a rank that computes longer than the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np

from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing, Part
from trilemma.diagnosis.readers.kineto import KIND
from trilemma.diagnosis.rules import Rule

#: Above these shares something is said at all, and said as a warning (TraceML d5cec511: 10 % warns, 20 % is critical; a third
#: of a step in exposed communication is more than any layout in a sane fabric needs).
_IDLE_CONTEXT, _EXPOSED_CONTEXT, _EXPOSED = 0.2, 0.05, 1 / 3
_SLOWER = 1.1
#: Waiting below this share of communication is no skew.
_SKEW = 0.1


def _judge(case: Case) -> Iterator[Finding | Missing]:
    measured = [(file, part.facts) for file, part in case.parts(KIND)]
    seen = [(file, facts) for file, facts in measured if facts.get("total_ms")]
    for file, facts in measured:
        if not facts.get("total_ms"):
            yield Missing(what=f"{file} holds no event of a GPU; profile with ProfilerActivity.CUDA")
    for file, facts in seen:
        yield from _of_one(file, facts)
    jobs: dict[str, list[tuple[str, Any]]] = {}
    for file, facts in seen:
        if isinstance(facts.get("rank"), int):
            jobs.setdefault(file.rpartition("/")[0], []).append((file, facts))
    for ranks in jobs.values():  # a folder is a job
        yield from _of_ranks(ranks)
        yield from _skew({file: part for file, part in case.parts(KIND) if file in {one for one, _ in ranks}})


def _of_one(file: str, facts: Any) -> Iterator[Finding]:
    total = facts["total_ms"]
    idle, exposed = facts["gpu_idle_ms"] / total, facts["exposed_communication_ms"] / total
    if idle > _IDLE_CONTEXT:
        yield Finding(
            id="trace.idle",
            role="context",
            severity="context",
            claim=f"the GPU has nothing to do for {idle:.0%} of {total:.4g} ms",
            evidence=(Evidence(file=file, value=f"idle {facts['gpu_idle_ms']:.4g} ms of {total:.4g} ms"),),
            observed=f"busy {facts['gpu_busy_ms']:.4g} ms",
            confidence="established",
            fix="if the span is one step: CUDA graphs or torch.compile, larger batches, less work on the host between launches",
            predicted_effect=f"at most {total / max(facts['gpu_busy_ms'], 1e-9):.3g} times as fast",
        )
    if exposed > _EXPOSED_CONTEXT:
        grave = exposed > _EXPOSED
        yield Finding(
            id="trace.exposed-communication",
            role="symptom" if grave else "context",
            severity="warning" if grave else "context",
            claim=f"communication that no computation hides takes {exposed:.0%} of {total:.4g} ms",
            evidence=(
                Evidence(
                    file=file,
                    value=f"exposed {facts['exposed_communication_ms']:.4g} ms of {facts['communication_ms']:.4g} ms of "
                    "communication",
                ),
            ),
            expected=f"less than {_EXPOSED:.0%}" if grave else None,
            observed=f"{exposed:.0%}",
            confidence="supported",
            fix="see whether the rank waits for a slower one (traces of the other ranks) or the fabric is slow (nccl-tests); "
            "then overlap more, or communicate less by another layout",
            predicted_effect=f"at most {1 / max(1 - exposed, 1e-9):.3g} times as fast",
        )


def _skew(parts: dict[str, Part]) -> Iterator[Finding]:
    """Transfer told from waiting: of one collective the rank that came last waits least, so the shortest of all is transfer."""
    calls = {file: part.whole.get("communication_us", ()) for file, part in parts.items()}
    counts = {len(one) for one in calls.values()}
    if len(calls) < 2 or len(counts) != 1 or not counts.copy().pop():
        return
    table = np.array(list(calls.values()))
    transfer = float(table.min(axis=0).sum()) / 1e3
    waits = {file: float(one.sum()) / 1e3 - transfer for file, one in zip(calls, table, strict=True)}
    most, least = max(waits, key=lambda one: waits[one]), min(waits, key=lambda one: waits[one])
    if waits[most] < _SKEW * (transfer + waits[most]):
        return
    ranks = {file: parts[file].facts["rank"] for file in (most, least)}
    yield Finding(
        id="trace.skew",
        role="context",
        severity="context",
        claim=f"of the communication of rank {ranks[most]}, {transfer + waits[most]:.4g} ms, {transfer:.4g} ms are transfer and "
        f"{waits[most]:.4g} ms waiting for ranks that come later; rank {ranks[least]} waits {waits[least]:.4g} ms",
        evidence=tuple(Evidence(file=file, value=f"waits {waits[file]:.4g} ms") for file in (most, least)),
        observed=f"{waits[most]:.4g} ms of waiting",
        confidence="supported",
        fix=f"what rank {ranks[least]} does in place of waiting is what holds up the others",
        predicted_effect=f"up to {waits[most]:.4g} ms less in this span",
    )


def _of_ranks(ranks: list[tuple[str, Any]]) -> Iterator[Finding]:
    """Ranks of one job beside each other: who computes longest makes the others wait in collectives."""
    if len({facts["rank"] for _, facts in ranks}) < 2:
        return
    middle = median(facts["compute_ms"] for _, facts in ranks)
    _, slowest = max(ranks, key=lambda one: one[1]["compute_ms"])
    ratio = slowest["compute_ms"] / max(middle, 1e-9)
    if ratio < _SLOWER:
        return
    least = min(ranks, key=lambda one: one[1]["communication_ms"])[1]
    agrees = least["rank"] == slowest["rank"]
    yield Finding(
        id="trace.slow-rank",
        role="root",
        severity="warning",
        claim=f"rank {slowest['rank']} computes {ratio:.2f} times as long as the median of {len(ranks)} ranks"
        + ("; it waits least in collectives, the others wait for it" if agrees else ""),
        evidence=tuple(
            Evidence(
                file=one,
                value=f"rank {facts['rank']}: computing {facts['compute_ms']:.4g} ms, communicating "
                f"{facts['communication_ms']:.4g} ms",
            )
            for one, facts in ranks[:16]
        ),
        expected=f"{middle:.4g} ms on every rank",
        observed=f"{slowest['compute_ms']:.4g} ms on rank {slowest['rank']}",
        confidence="supported" if agrees else "hypothesis",
        fix="compare its clocks, power and temperature with the others'; give it the same share of tokens or experts",
        predicted_effect=f"{slowest['compute_ms'] - middle:.4g} ms less waiting in this span",
    )


RULE = Rule(needs=(KIND,), judge=_judge)
