"""A machine examined, for people: a line an area, then every finding in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trilemma.report.findings import finding_words
from trilemma.report.wrapping import wrapped

if TYPE_CHECKING:
    from trilemma.machine.examination import Check, Examination

_MARKS = {"ok": "ok", "fault": "FAULT", "note": "note", "not seen": "?"}


def render_examination(found: Examination, *, explain: bool = False, width: int = 100) -> str:
    """Areas, findings above context (all of them with ``explain``), and the verdict in a sentence."""
    widest = max(len(check.area) for check in found.checks)
    lines = [line for check in found.checks for line in _check(check, widest, width)]
    shown = [one for one in found.findings if explain or one.severity != "context"]
    notes = [one for one in found.findings if one.severity == "context" and not explain]
    parts = ["\n".join(lines), *(finding_words(one, explain=explain, width=width) for one in shown)]
    if notes:
        told = [line for one in notes for line in wrapped(f"- {one.claim}", width, subsequent_indent="  ")]
        parts.append("\n".join(["notes", *told]))
    if found.unseen:
        told = [
            line for one in found.unseen for line in wrapped(f"- {one.what}: {one.why}", width, subsequent_indent="  ")
        ]
        parts.append("\n".join(["not seen", *told]))
    return "\n\n".join([*parts, _verdict(found)])


def _check(check: Check, widest: int, width: int) -> list[str]:
    head = f"{_MARKS[check.state]:<6}{check.area:<{widest}}  "
    return wrapped(check.seen, width, initial_indent=head, subsequent_indent=" " * len(head))


def _verdict(found: Examination) -> str:
    counts = {state: sum(check.state == state for check in found.checks) for state in _MARKS}
    faults = f"{counts['fault']} of {len(found.checks)} areas at fault" if counts["fault"] else "no fault found"
    return faults + (f"; {counts['not seen']} could not be seen" if counts["not seen"] else "")
