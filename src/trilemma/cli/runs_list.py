"""``trilemma runs list``: the latest runs."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import whole_number
from trilemma.cli.output import YES, screen_width
from trilemma.cli.runs import add_ledger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="of this name alone")
    parser.add_argument("--model", help="of this model alone")
    parser.add_argument("--tag", help="with this tag alone")
    parser.add_argument("--most", metavar="N", type=whole_number, default=30, help="how many (default 30)")
    add_ledger(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.report.document import dumps
    from trilemma.report.runs import render_runs, runs_document
    from trilemma.runs.store import RunLedger, ledger_path

    with RunLedger(ledger_path(arguments.ledger), must_exist=True) as ledger:
        found = ledger.runs(name=arguments.name, model=arguments.model, tag=arguments.tag, most=arguments.most)
    print(dumps(runs_document(found)) if arguments.json else render_runs(found, width=screen_width()))
    return YES
