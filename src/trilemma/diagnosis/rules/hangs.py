"""Collectives that never ended: who stayed away, who called another one, who all came and did not get through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trilemma.diagnosis.findings import Case, Evidence, Finding, Missing
from trilemma.diagnosis.hangs import Hang, Stuck
from trilemma.diagnosis.readers.flight_recorder import KIND, hangs_in
from trilemma.diagnosis.rules import Rule

_LISTED = 16


def _judge(case: Case) -> Iterator[Finding | Missing]:
    for _, hang in hangs_in(case):
        yield from _of_job(hang)


def _of_job(hang: Hang | None) -> Iterator[Finding | Missing]:
    if hang is None:
        yield Missing(
            what="flight-recorder dumps of the other ranks (their names end in the rank): which rank is missing"
        )
        return
    if hang.absent:
        yield Missing(
            what=f"flight-recorder dumps of ranks {listed(hang.absent)}: whether they came to the collectives"
        )
    for one in hang.mismatched[:1]:
        yield _mismatch(one)
    for one in hang.roots:
        yield _missing(one, alone=not hang.absent)
    if hang.roots and hang.cascades:
        yield _cascade(hang.cascades)
    if not hang.roots and not hang.mismatched and hang.unfinished:
        yield _unfinished(hang.unfinished[0])


def listed(ranks: Iterable[int]) -> str:
    ordered = sorted(ranks)
    more = f" and {len(ordered) - _LISTED} more" if len(ordered) > _LISTED else ""
    return ", ".join(map(str, ordered[:_LISTED])) + more


def _evidence(one: Stuck) -> tuple[Evidence, ...]:
    call = one.call
    said = f"{call.operation} {call.sizes} {call.dtype}, group {call.group} {call.description}, number {call.sequence}"
    return (Evidence(file=one.file, value=f"{said}: {call.state}"),)


def _missing(one: Stuck, *, alone: bool) -> Finding:
    plural = "s" if len(one.missing) > 1 else ""
    return Finding(
        id="hang.missing-ranks",
        role="root",
        severity="error",
        claim=f"rank{plural} {listed(one.missing)} never called {one.call.operation} number {one.call.sequence} of group "
        f"{one.call.group} ({one.call.description}), in which ranks {listed(one.waiting)} wait",
        evidence=_evidence(one),
        expected=f"{len(one.missing) + len(one.waiting)} ranks in the collective",
        observed=f"{len(one.waiting)} ranks; missing {listed(one.missing)}",
        confidence="established" if alone else "supported",
        fix=f"look at rank{plural} {listed(one.missing)} first: the GPU (Xid, ECC), the host process (py-spy dump), the "
        "data loader; restart without that node",
        predicted_effect="every other pending collective of the job waits for this one",
    )


def _mismatch(one: Stuck) -> Finding:
    said = "; ".join(f"{name} on ranks {listed(ranks)}" for name, ranks in one.others.items())
    return Finding(
        id="hang.mismatched-collective",
        role="root",
        severity="error",
        claim=f"ranks of group {one.call.group} ({one.call.description}) called different collectives as number "
        f"{one.call.sequence}: {said}",
        evidence=_evidence(one),
        expected="the same collective with the same size on every rank",
        observed=said,
        confidence="established",
        fix="make every rank take the same branch: same number of micro-batches, same modules, no collective under a "
        "condition that differs by rank",
    )


def _cascade(cascades: tuple[Stuck, ...]) -> Finding:
    groups = ", ".join(f"{one.call.group} ({one.call.description})" for one in cascades[:6])
    return Finding(
        id="hang.held-up-groups",
        role="cascade",
        severity="context",
        claim=f"{len(cascades)} further groups are held up by the same ranks: {groups}",
        evidence=tuple(evidence for one in cascades[:6] for evidence in _evidence(one)),
        confidence="supported",
    )


def _unfinished(one: Stuck) -> Finding:
    return Finding(
        id="hang.unfinished-collective",
        role="symptom",
        severity="warning",
        claim=f"every rank of group {one.call.group} ({one.call.description}) called {one.call.operation} number "
        f"{one.call.sequence} and none came out of it",
        evidence=_evidence(one),
        expected="the collective ends once all ranks are in it",
        observed=f"pending on ranks {listed(one.waiting)}",
        confidence="hypothesis",
        fix="look at the network and the GPUs of these ranks: link errors, Xid, a kernel before the collective that never ends",
    )


RULE = Rule(needs=(KIND,), judge=_judge)
