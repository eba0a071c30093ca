"""An upgrade for people and as ``trilemma/upgrade@1``."""

from __future__ import annotations

import textwrap
from typing import Any

from trilemma.data.digest import made_by
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.upgrade import Upgrade, VersionChange
from trilemma.quantities import GIB, show_count
from trilemma.report.document import estimate_document
from trilemma.report.tables import render_table

UPGRADE_SCHEMA = "trilemma/upgrade@1"


def upgrade_document(found: Upgrade) -> dict[str, Any]:
    """The upgrade as plain data; ``before`` and ``after`` are estimates."""
    return {
        "schema": UPGRADE_SCHEMA,
        "made_by": made_by(),
        "engine": found.engine,
        "from": found.old,
        "to": found.new,
        "harmless": found.harmless,
        "command": found.command,
        "refused": [{"code": warning.code, "message": warning.message} for warning in found.refused],
        "renamed": [{"from": change.before, "to": change.after} for change in found.renamed],
        "rules": [_change(change) for change in found.rules],
        "options": [_change(change) for change in found.options],
        "memory": [
            {"name": name, "before_bytes": before, "after_bytes": after}
            for name, before, after in _lines(found.before, found.after)
        ],
        "before": estimate_document(found.before),
        "after": estimate_document(found.after),
    }


def _change(change: VersionChange) -> dict[str, Any]:
    told = {"name": change.name, "before": change.before, "after": change.after}
    return told | ({"source": change.source} if change.source else {})


def _lines(before: Estimate, after: Estimate) -> list[tuple[str, float, float]]:
    """Memory lines by name, one side zero where it has none."""
    sides = [{line.name: float(line.bytes) for line in one.memory.ledger} for one in (before, after)]
    names = [*sides[0], *(name for name in sides[1] if name not in sides[0])]
    return [(name, sides[0].get(name, 0.0), sides[1].get(name, 0.0)) for name in names]


def render_upgrade(found: Upgrade, *, width: int) -> str:
    """What changes, most pressing first: flags, then whether it starts, memory, options, rules."""
    parts = [f"{found.engine} {found.old} to {found.new}: {_headline(found)}"]
    if found.refused:
        told = [textwrap.fill(f"- {warning.message}", width, subsequent_indent="  ") for warning in found.refused]
        parts.append("flags that the new version refuses\n" + "\n".join(told))
    parts.append(_memory(found, width))
    if found.options:
        rows = [[one.name, _shown(one.before), _shown(one.after)] for one in found.options]
        parts.append(render_table(["option in force", found.old, found.new], rows, width=width))
    if found.rules:
        rows = [[one.name.replace("_", " "), _shown(one.before), _shown(one.after), one.source] for one in found.rules]
        parts.append(
            render_table(["rule of the engine", found.old, found.new, "source"], rows, align="llll", width=width)
        )
    parts.append(f"run it\n  {found.command}")
    return "\n\n".join(parts)


def _headline(found: Upgrade) -> str:
    stage = found.after.verdict.stage
    already = "" if found.before.fits else f", nor does it under {found.old}"
    ends = f"it does not start ({stage}){already}: {found.after.verdict.reason}"
    if found.after.fits:
        ends = "it starts" if found.before.fits else f"it starts, which it does not under {found.old}"
    if found.refused:
        number = len(found.refused)
        return (
            f"{number} flag{'s are' if number > 1 else ' is'} refused; without {'them' if number > 1 else 'it'} {ends}"
        )
    before, after = found.before.cache, found.after.cache
    if before is None or after is None or not before.tokens.value:
        return ends
    share = after.tokens.value / before.tokens.value - 1
    return f"{ends}, {show_count(after.tokens.value)} tokens of cache ({share:+.1%})"


def _memory(found: Upgrade, width: int) -> str:
    rows = [
        [name.replace("_", " "), f"{before / GIB:.2f}", f"{after / GIB:.2f}", f"{(after - before) / GIB:+.2f}"]
        for name, before, after in _lines(found.before, found.after)
    ]
    caches = [one.cache for one in (found.before, found.after)]
    if caches[0] is not None and caches[1] is not None:
        first, second = caches[0].tokens.value, caches[1].tokens.value
        rows.append(["tokens of cache", show_count(first), show_count(second), f"{second - first:+,.0f}"])
    return render_table(["memory per GPU, GiB", found.old, found.new, "change"], rows, align="lrrr", width=width)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(_shown(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
