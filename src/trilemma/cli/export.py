"""``trilemma export``: an estimate, or one plan of a search, into files and commands that the engine accepts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trilemma.ask.plan_documents import chosen, read_document
from trilemma.cli import export_serving, export_training
from trilemma.errors import InputError, UnknownName, shorten


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("document", metavar="FILE.json", help="what fit, check or plan printed with --json")
    known = ", ".join((*_serving_targets(), *_frameworks()))
    parser.add_argument(
        "--to",
        required=True,
        metavar="TARGET",
        help=f"one of: {known}; kubernetes and llm-d write for the engine that the plan was judged for",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder for the files; made when absent")
    parser.add_argument("--plan", type=int, default=1, metavar="N", help="which plan of a search, counted from 1")
    parser.add_argument("--force", action="store_true", help="overwrite files that differ")


def run(arguments: argparse.Namespace) -> int:
    """Writes the files and prints their paths."""
    known = (*_serving_targets(), *_frameworks())
    if arguments.to not in known:
        raise UnknownName("engine", arguments.to, known, hint=f"files are written for: {', '.join(known)}")
    estimate = chosen(read_document(arguments.document), arguments.plan, arguments.document)
    if _trains(estimate) != (arguments.to in _frameworks()):
        kind, wanted = ("training", _frameworks()) if _trains(estimate) else ("serving", _serving_targets())
        raise InputError(f"{shorten(arguments.document)} holds a {kind} plan; use --to {' or '.join(wanted)}")
    writer = export_training if _trains(estimate) else export_serving
    contents = writer.files(estimate, to=arguments.to, path=arguments.document)
    for path in _write(contents, Path(arguments.output), force=arguments.force):
        print(path)
    if estimate.get("fits") is False:
        reason = shorten(str(estimate.get("reason") or "it does not fit"), most=200)
        print(f"trilemma: the plan written is not expected to start: {reason}", file=sys.stderr)
    return 0


def _serving_targets() -> tuple[str, ...]:
    from trilemma.engines.traits import those

    return (*those("deploys"), *export_serving.MANAGED)


def _frameworks() -> tuple[str, ...]:
    """Frameworks that files of training plans are written for."""
    from trilemma.plans.frameworks import those

    return those("writer")


def _trains(estimate: Mapping[str, Any]) -> bool:
    """Whether a document's plan is one of training: it names its implementation where serving plans have pools."""
    inputs = estimate.get("inputs")
    plan = inputs.get("plan") if isinstance(inputs, Mapping) else None
    return isinstance(plan, Mapping) and "implementation" in plan


def _write(contents: Mapping[str, str], folder: Path, *, force: bool) -> list[Path]:
    """Writes all or nothing: files that would change are named first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = {folder / name: content for name, content in contents.items()}
        changed = [path.name for path, content in paths.items() if path.exists() and not _same(path, content)]
        if changed and not force:
            raise InputError(f"{shorten(str(folder))} holds other {', '.join(changed)}; give --force to overwrite")
        for path, content in paths.items():
            path.write_text(content, encoding="utf-8", newline="\n")
            if path.suffix == ".sh":
                path.chmod(0o755)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise InputError(f"-o {shorten(str(folder))} cannot be written: {reason}") from error
    return list(paths)


def _same(path: Path, content: str) -> bool:
    data = content.encode()
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
