"""``trilemma runs record``: a run by its figures."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from trilemma.cli.arguments import number, whole_number
from trilemma.cli.output import YES
from trilemma.cli.runs import add_ledger
from trilemma.errors import InputError, shorten


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="what to find it by")
    parser.add_argument(
        "--figure", metavar="NAME=VALUE", action="append", default=[], help="a result, unit in its name: step_s=0.31"
    )
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a setting of the run")
    parser.add_argument("--config", metavar="FILE.json", help="its settings as a JSON object")
    parser.add_argument("--estimate", metavar="FILE.json", help="what was expected: the document of fit, check or plan")
    parser.add_argument("--model", default="", help="what ran")
    parser.add_argument("--gpu", default="", help="on which card")
    parser.add_argument("--gpus", type=whole_number, help="how many of them")
    parser.add_argument("--tag", action="append", default=[], help="a word to find it by; may be repeated")
    parser.add_argument("--seconds", type=number, default=0.0, help="how long it took")
    parser.add_argument("--crashed", metavar="WHY", default="", help="that it crashed, and why")
    add_ledger(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.runs.recording import git_state, machine_state
    from trilemma.runs.run import LedgerRun
    from trilemma.runs.store import RunLedger, ledger_path

    ended = time.time()
    kept = LedgerRun(
        name=arguments.name,
        started_s=ended - arguments.seconds,
        ended_s=ended,
        status="crashed" if arguments.crashed else "done",
        why=arguments.crashed[:300],
        model=arguments.model,
        gpu=arguments.gpu,
        gpus=arguments.gpus,
        tags=tuple(arguments.tag),
        git=git_state(),
        config=_read(arguments.config, "--config") | _pairs(arguments.set, "--set"),
        machine=machine_state(),
        figures={name: _figure(name, value) for name, value in _pairs(arguments.figure, "--figure").items()},
        estimate=_read(arguments.estimate, "--estimate"),
    )
    with RunLedger(ledger_path(arguments.ledger)) as ledger:
        found = ledger.add(kept)
        print(
            json.dumps({"id": found, "ledger": str(ledger.path)}) if arguments.json else f"run {found} in {ledger.path}"
        )
    return YES


def _pairs(given: list[str], flag: str) -> dict[str, str]:
    found = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise InputError(f"{flag} {shorten(one)!r} is not NAME=VALUE, such as step_s=0.31")
        found[name] = value
    return found


def _figure(name: str, value: str) -> float:
    from trilemma.ask.reading import number as read

    try:
        return read(value)
    except InputError as error:
        raise InputError(f"--figure {shorten(name)}: {error}") from None


def _read(path: str | None, flag: str) -> dict[str, Any]:
    from trilemma.models.documents import parse_object
    from trilemma.outside_files import read_bytes
    from trilemma.runs.run import MOST_BYTES

    if path is None:
        return {}
    content = read_bytes(path, most_bytes=MOST_BYTES, what=flag, give="give a file with a JSON object")
    return parse_object(content, what=f"{flag} {shorten(path)}")
