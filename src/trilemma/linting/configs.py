"""Configuration files: keys that their reader does not know, lost or ignores in silence, and batches that do not multiply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trilemma import engines
from trilemma.commands.flags import FlagTable, edits
from trilemma.diagnosis.findings import Finding
from trilemma.errors import nearest
from trilemma.linting.facts import facts as lint_facts
from trilemma.linting.said import said

#: Of the keys of an engine's file of flags at least this share are flags of the engine, and so many at least.
_SHARE, _LEAST = 0.6, 2


def findings(file: str, document: Any, text: str, *, form: str) -> Iterator[Finding]:
    """Of one document of a file, by what stands in it."""
    if not isinstance(document, Mapping):
        return
    keys = [str(key) for key in document]
    for row in lint_facts("lint/configs.toml")["config"]:
        if form in row["forms"] and _is_of(document, row):
            yield from _of_keys(file, document, text, row)
            yield from _of_batch(file, document, text, row)
            return
    table = _table_of(keys)
    if table is not None:
        yield from _of_flags(file, document, text, table)


def _is_of(document: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """A key that no other kind has, or one that others have too among keys of which most are of this kind."""
    if any(mark in document for mark in row["marks"]):
        return True
    known = lint_facts(row["file"])[row["table"]]
    shared = any(mark in document for mark in row.get("shared_marks", ()))
    return shared and sum(str(key) in known for key in document) >= _SHARE * len(document)


def _of_keys(file: str, document: Mapping[str, Any], text: str, row: Mapping[str, Any]) -> Iterator[Finding]:
    facts = lint_facts(row["file"])
    for key in map(str, document):
        yield from _of_key(file, key, key, text, row, facts[row["table"]])
    for section, table in row["sections"].items():
        inner = document.get(section)
        for key in map(str, inner) if isinstance(inner, Mapping) else ():
            yield from _of_key(file, f"{section}.{key}", key, text, row, facts[table])


def _of_key(file: str, path: str, key: str, text: str, row: Mapping[str, Any], known: list[str]) -> Iterator[Finding]:
    name, line = row["name"], _line_of(text, key)
    gone = next(
        (one for one in lint_facts("lint/configs.toml")["key"] if one["config"] == name and one["key"] == path), None
    )
    if gone is not None:
        state = "is gone by" if gone["state"] == "removed" else "is deprecated since"
        yield said(
            f"config.{gone['state']}", f"{path} of {name} {state} {gone['version']}", file=file, line=line, value=key,
            fix=f"{gone['instead']} ({gone['source']})", severity="error" if gone["state"] == "removed" else "context",
        )  # fmt: skip
    elif key not in known and not key.startswith("_"):  # a comment, where the form has none
        near = nearest(key, known, most=2)
        slip = bool(near) and edits(key, near[0]) <= 2
        silent = ", and ignores it in silence" if row["silent"] else ""
        yield said(
            "config.unknown-key", f"{name} is not known to have {path}{silent}", file=file, line=line, value=key,
            fix=f"did you mean {' or '.join(near)}?" if near else "leave it out",
            # What refuses unknown keys says so itself when it starts; of what does not, this is the only word.
            severity="error" if slip else "warning" if row["silent"] else "context",
            confidence="established" if slip else "supported" if row["silent"] else "hypothesis",
        )  # fmt: skip


def _of_batch(file: str, document: Mapping[str, Any], text: str, row: Mapping[str, Any]) -> Iterator[Finding]:
    """The batch of all ranks is a multiple of what one rank takes: micro-batch times steps of accumulation."""
    names = row.get("batch")
    if names is None:
        return
    whole, micro, steps = (document.get(names[key]) for key in ("all", "micro", "steps"))
    if not all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in (whole, micro)):
        return
    taken = int(micro or 1) * (steps if isinstance(steps, int) and steps > 0 else 1)
    if int(whole or 0) % taken:
        yield said(
            "batch.does-not-multiply",
            f"{names['all']} {whole} is no multiple of {names['micro']} x {names['steps']} = {taken}: one is of a rank, the"
            " other of all",
            file=file, line=_line_of(text, names["all"]), value=f"{names['all']}: {whole}",
            fix=f"{names['all']} = {taken} x the number of data-parallel ranks",
        )  # fmt: skip


def _table_of(keys: list[str]) -> FlagTable | None:
    """The engine whose flags most of the keys are: a file given as ``--config``."""
    if len(keys) < _LEAST:
        return None
    best: tuple[float, FlagTable | None] = (0.0, None)
    for name in engines.readable():
        table = engines.get(name).flags()
        share = sum(table.lookup(f"--{key}") is not None for key in keys) / len(keys)
        if share > best[0]:
            best = share, table
    return best[1] if best[0] >= _SHARE else None


def _of_flags(file: str, document: Mapping[str, Any], text: str, table: FlagTable) -> Iterator[Finding]:
    newest = table.versions[-1]
    shown = ".".join(map(str, newest))
    for key, value in document.items():
        found, line = table.lookup(f"--{key}"), _line_of(text, str(key))
        if found is None:
            near = nearest(str(key).replace("_", "-"), table.flags, most=2)
            yield said(
                "config.unknown-key", f"{table.engine} {shown} is not known to have --{key}", file=file, line=line,
                value=str(key), fix=f"did you mean {' or '.join(near)}?" if near else "leave it out",
                severity="error" if table.meant_by(f"--{key}") else "warning", confidence="supported",
            )  # fmt: skip
        elif found.flag.gone_at(newest):
            gone, today = ".".join(map(str, found.flag.removed or ())), found.flag.renamed_to or found.flag.instead
            yield said(
                "config.removed", f"{key} of {table.engine} is gone by {gone}", file=file, line=line, value=str(key),
                fix=f"{today} ({table.source})" if today else f"leave it out ({table.source})",
            )  # fmt: skip
        elif (
            isinstance(value, str)
            and not table.values.takes(found.flag.name, value, newest)
            and value not in ("", "auto")
        ):
            taken = ", ".join(table.values.at(found.flag.name, newest))
            yield said(
                "config.refused-value", f"{table.engine} {shown} takes no {key} {value[:60]}", file=file, line=line,
                value=f"{key}: {value[:60]}", fix=f"one of {taken}",
            )  # fmt: skip


def _line_of(text: str, key: str) -> int | None:
    return next((number for number, line in enumerate(text.splitlines(), start=1) if key in line), None)
