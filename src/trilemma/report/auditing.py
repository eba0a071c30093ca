"""The checklist for people: an item a line with its evidence, remedies of what failed, and the count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trilemma.report.findings import finding_words
from trilemma.report.wrapping import wrapped

if TYPE_CHECKING:
    from trilemma.auditing.checklist import Audit

_MARKS = {"pass": "pass", "fail": "FAIL", "unknown": "?"}


def render_audit(found: Audit, *, explain: bool = False, width: int = 100) -> str:
    """The plan, every item, and how many passed; ``explain`` adds the findings that failed items rest on."""
    parts = ["\n".join(wrapped(found.plan, width))] if found.plan else []
    lines = []
    for item in found.items:
        head = f"{_MARKS[item.state]:<6}"
        lines += wrapped(f"{item.item}: {item.evidence}", width, initial_indent=head, subsequent_indent=" " * 8)
        if item.remedy:
            lines += wrapped(f"remedy: {item.remedy}", width, initial_indent=" " * 8, subsequent_indent=" " * 10)
    parts.append("\n".join(lines))
    if explain:
        parts += [finding_words(one, explain=True, width=width) for one in found.findings]
    counts = {state: sum(item.state == state for item in found.items) for state in _MARKS}
    parts.append(
        f"{counts['pass']} of {len(found.items)} passed, {counts['fail']} failed, {counts['unknown']} not known"
    )
    return "\n\n".join(parts)
