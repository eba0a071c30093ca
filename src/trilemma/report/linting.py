"""What a linter found, for people: a line and its remedy each, as compilers tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trilemma.quantities import counted
from trilemma.report.wrapping import wrapped

if TYPE_CHECKING:
    from trilemma.diagnosis.findings import Finding
    from trilemma.linting.files import Linting

_WORDS = {"error": "error", "warning": "warning", "context": "note"}


def render_linting(found: Linting, *, explain: bool = False, width: int = 100) -> str:
    """Findings in the order of their gravity; notes only where nothing else is told, or with ``explain``."""
    grave = [one for one in found.findings if one.severity != "context"]
    notes = [one for one in found.findings if one.severity == "context"]
    shown = [*grave, *notes] if explain or not grave else grave
    parts = ["\n".join(_finding(one, width)) for one in shown]
    unread = [one for one in found.files if one.why]
    if unread:
        parts.append("\n".join(["not read", *(f"- {one.file}: {one.why}" for one in unread)]))
    return "\n\n".join([*parts, _verdict(found, len(grave), len(notes) if len(shown) == len(grave) else 0)])


def _finding(one: Finding, width: int) -> list[str]:
    proof = one.evidence[0]
    place = proof.file if proof.line is None else f"{proof.file}:{proof.line}"
    lines = wrapped(f"{place}: {_WORDS[one.severity]}: {one.claim} [{one.id}]", width, subsequent_indent="    ")
    lines += wrapped(proof.value, width, initial_indent="    | ", subsequent_indent="    | ")
    for label, text in (("instead", one.fix), ("effect", one.predicted_effect)):
        if text:
            lines += wrapped(f"{label}: {text}", width, initial_indent="    ", subsequent_indent="      ")
    return lines


def _verdict(found: Linting, grave: int, hidden: int) -> str:
    read = [one for one in found.files if not one.why]
    said = f"{counted(grave, 'finding')}" if grave else "nothing found"
    more = f" ({counted(hidden, 'note')} with --explain)" if hidden else ""
    return f"{said}{more} in {counted(len(read), 'file')}"
