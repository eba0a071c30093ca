"""A diagnosis as a screen and as the document ``trilemma/findings@1``."""

from __future__ import annotations

import json
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from trilemma.columns import document_of
from trilemma.diagnosis.findings import Evidence, Finding
from trilemma.quantities import counted

if TYPE_CHECKING:
    from trilemma.diagnosis.judging import Diagnosis

_EVIDENCE_SHOWN = 4


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain values, as ``--json`` prints them."""
    return document_of(diagnosis, exact=True)


def render(diagnosis: Diagnosis, *, explain: bool = False, width: int = 100) -> str:
    """The findings in words; ``explain`` adds the facts of every file."""
    blocks = [finding_words(one, explain=explain, width=width) for one in diagnosis.findings]
    if diagnosis.healthy and len(diagnosis.unreadable) < len(diagnosis.files):
        blocks.insert(0, f"No fault found in {counted(len(diagnosis.files), 'file')}: {_kinds(diagnosis)}.")
    if diagnosis.missing:
        blocks.append("\n".join(["More would be said with:", *(f"  - {one}" for one in diagnosis.missing)]))
    if diagnosis.unreadable:
        told = [f"  - {one.file}: {one.why}" for one in diagnosis.unreadable]
        blocks.append("\n".join(["Not read:", *told]))
    if explain:
        blocks.append("\n".join(_facts(diagnosis)))
    return "\n\n".join(blocks)


def _kinds(diagnosis: Diagnosis) -> str:
    kinds: dict[str, int] = {}
    for one in diagnosis.files:
        kinds[one.kind] = kinds.get(one.kind, 0) + 1
    return ", ".join(f"{kind} ({number})" if number > 1 else kind for kind, number in kinds.items())


def finding_words(finding: Finding, *, explain: bool, width: int) -> str:
    """One finding: severity, claim, figures, evidence, fix."""
    sure = "" if finding.confidence == "established" else f", {finding.confidence}"
    lines = wrap(f"{finding.severity.upper()} ({finding.role}{sure}): {finding.claim}.", width)
    shown = finding.evidence if explain else finding.evidence[:_EVIDENCE_SHOWN]
    told = [("expected", finding.expected), ("observed", finding.observed)]
    told += [("evidence" if at == 0 else "", _place(proof)) for at, proof in enumerate(shown)]
    if len(shown) < len(finding.evidence):
        told.append(("", f"and {len(finding.evidence) - len(shown)} more, with --explain"))
    told += [("fix", finding.fix), ("effect", finding.predicted_effect)]
    for label, text in told:
        if text:
            lines += wrap(f"{label:10}{text}", width, initial_indent="  ", subsequent_indent=" " * 12)
    return "\n".join(lines)


def _place(proof: Evidence) -> str:
    where = proof.file if proof.line is None else f"{proof.file}:{proof.line}"
    return f"{where}: {proof.value}"


def _facts(diagnosis: Diagnosis) -> list[str]:
    lines = []
    for one in diagnosis.files:
        lines.append(f"{one.file}: {one.kind}")
        lines += [f"  {name}: {_short(value)}" for name, value in one.facts.items()]
    return lines


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else text[:199] + "…"
