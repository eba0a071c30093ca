"""An upgrade for people and as ``trilemma/upgrade@1``."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal

from trilemma.columns import column, document_of
from trilemma.data.digest import Made, made_by
from trilemma.errors import PlanWarning
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.upgrade import Upgrade, VersionChange
from trilemma.quantities import GIB, show_count
from trilemma.report.tables import render_table


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagRenamed:
    """A flag whose name changes."""

    old: Any = field(metadata=column("from"))
    new: Any = field(metadata=column("to"))


@dataclass(frozen=True, kw_only=True, slots=True)
class LineChanged:
    """A line of the memory ledger on both sides; 0 where a side has none."""

    name: str
    before_bytes: float = field(metadata=column(exact=True))
    after_bytes: float = field(metadata=column(exact=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class UpgradeDocument:
    """``trilemma/upgrade@1``: what another version makes of a command; ``harmless`` where nothing is refused and it starts."""

    schema: Literal["trilemma/upgrade@1"] = "trilemma/upgrade@1"
    made_by: Made = field(metadata=column(exact=True))
    engine: str
    old: str = field(metadata=column("from"))
    new: str = field(metadata=column("to"))
    harmless: bool
    command: str
    refused: tuple[PlanWarning, ...] = field(metadata=column(keep="empty"))
    renamed: tuple[FlagRenamed, ...] = field(metadata=column(keep="empty"))
    rules: tuple[VersionChange, ...] = field(metadata=column(keep="empty"))
    options: tuple[VersionChange, ...] = field(metadata=column(keep="empty"))
    memory: tuple[LineChanged, ...] = field(metadata=column(keep="empty"))
    before: Estimate
    after: Estimate


def upgrade_document(found: Upgrade) -> dict[str, Any]:
    """The upgrade as plain data; ``before`` and ``after`` are estimates."""
    document = UpgradeDocument(
        made_by=made_by(),
        engine=found.engine,
        old=found.old,
        new=found.new,
        harmless=found.harmless,
        command=found.command,
        refused=found.refused,
        renamed=tuple(FlagRenamed(old=change.before, new=change.after) for change in found.renamed),
        rules=found.rules,
        options=found.options,
        memory=tuple(
            LineChanged(name=name, before_bytes=before, after_bytes=after)
            for name, before, after in _lines(found.before, found.after)
        ),
        before=found.before,
        after=found.after,
    )
    return document_of(document)


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
