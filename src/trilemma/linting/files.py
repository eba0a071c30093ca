"""Files in, findings out: what a file is, its name and its content decide; nothing in it is run."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from trilemma.columns import column
from trilemma.diagnosis.findings import Finding, in_order
from trilemma.diagnosis.sources import Unreadable, files_of
from trilemma.errors import InputError, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.linting import api_names, commands, configs, device_recipes, model_calls, numbers, training_loops
from trilemma.linting.script import parses, read_script
from trilemma.outside_files import opened, reason

_MOST_BYTES = 4 << 20
_MOST_FINDINGS = 1000
#: Endings of files that a folder is searched for.
_ENDINGS = (".py", ".ipynb", ".sh", ".bash", ".yaml", ".yml", ".json", ".toml", ".slurm", ".sbatch")
_FORMS = {
    ".py": "python", ".ipynb": "notebook", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".sh": "shell",
    ".bash": "shell", ".slurm": "shell", ".sbatch": "shell",
}  # fmt: skip
_PYTHON = re.compile(r"^(?:import \w|from [\w.]+ import |def \w+\(|class \w+[(:])", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class LintedFile:
    """A file and what it was taken for; ``why`` says why it could not be read."""

    file: str
    kind: str
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Linting:
    """Findings, the gravest first, beside the files that were read."""

    schema: str = "trilemma/lint@1"
    findings: tuple[Finding, ...] = field(metadata=column(keep="empty"))
    files: tuple[LintedFile, ...] = ()

    @property
    def healthy(self) -> bool:
        """No finding above context."""
        return all(one.severity == "context" for one in self.findings)


def lint(paths: Sequence[str | Path], *, card: Accelerator | None = None) -> Linting:
    """Files, folders and ``-``. Raises `InputError` where a file that was named cannot be read."""
    if not paths:
        raise InputError("nothing to lint; name a script, a configuration, a file of commands, or - for standard input")
    named = {str(path) for path in paths}
    names = [name for name in files_of(paths) if name in named or name.endswith(_ENDINGS)]
    found: list[Finding] = []
    files = []
    for name in names:
        kind, findings, why = _of_file(name, card)
        if why is not None and name in named:
            raise InputError(f"{shorten(name)}: {why}")
        files.append(LintedFile(file=name, kind=kind, why=why))
        found += sorted(findings, key=lambda one: one.evidence[0].line or 0)
    return Linting(findings=in_order(found), files=tuple(files))


def _of_file(name: str, card: Accelerator | None) -> tuple[str, list[Finding], str | None]:
    try:
        text = _text(name)
        form = _form(name, text)
        return form, list(islice(_judged(name, text, form, card), _MOST_FINDINGS)), None
    except (Unreadable, InputError) as error:
        return "unreadable", [], str(error)


def _text(name: str) -> str:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with opened(name) as file:
                data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise Unreadable(reason(error)) from None
    if len(data) > _MOST_BYTES:
        raise Unreadable(f"it is larger than {_MOST_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("it is no UTF-8 text") from None
    if "\0" in text:
        raise Unreadable("it is no text")
    return text


def _form(name: str, text: str) -> str:
    ending = PurePosixPath(name).suffix.lower()
    if ending in _FORMS:
        return _FORMS[ending]
    start = text.lstrip()[:1]
    if start == "{":
        return "json"
    if text.startswith("#!") and "python" in text.partition("\n")[0]:
        return "python"
    if text.startswith("#!"):
        return "shell"
    return "python" if _PYTHON.search(text) else "shell"


def _judged(name: str, text: str, form: str, card: Accelerator | None) -> Iterator[Finding]:
    if form == "python":
        yield from _of_python(name, text, card)
    elif form == "notebook":
        yield from _of_python(name, _cells(text), card)
    elif form == "shell":
        yield from commands.findings(name, text)
    else:
        documents = _documents(name, text, form)
        for document in documents:
            yield from configs.findings(name, document, text, form=form)
        if form == "yaml" and any(isinstance(one, dict) and ("kind" in one or "services" in one) for one in documents):
            yield from _of_manifest(name, documents)


def _of_python(name: str, text: str, card: Accelerator | None) -> Iterator[Finding]:
    script = read_script(name, text)
    for rules in (api_names, training_loops, model_calls, numbers):
        yield from rules.findings(script)
    if card is not None:
        yield from device_recipes.findings(script, card)


def _cells(text: str) -> str:
    """The code of a notebook, cell after cell; lines for its shell, its magics, and cells that are no Python are left out."""
    document = _json(text)
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("it is no notebook: it has no cells")
    code = []
    for cell in cells[:10_000]:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            lines = ("".join(map(str, source)) if isinstance(source, list) else str(source)).splitlines()
            kept = [_without_magic(line) for line in lines]
            code += kept if parses("\n".join(kept)) else [""] * len(lines)
    return "\n".join(code)


def _without_magic(line: str) -> str:
    """``!pip install x`` and ``%time`` at their depth as nothing."""
    start = line.lstrip()
    return f"{line[: len(line) - len(start)]}pass" if start[:1] in ("!", "%") else line


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError):
        raise Unreadable("damaged JSON") from None


def _documents(name: str, text: str, form: str) -> list[Any]:
    if form == "json":
        return [_json(text)]
    if form == "toml":
        try:
            return [tomllib.loads(text)]
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"damaged TOML: {shorten(str(error))}") from None
    from trilemma.commands.bounded_yaml import load_all

    return load_all(text, name=name)


def _of_manifest(name: str, documents: list[Any]) -> Iterator[Finding]:
    """The commands of every container of a manifest."""
    from trilemma.commands import containers

    for run in containers.runs_in(documents):
        yield from commands.in_container(name, run)
