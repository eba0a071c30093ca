"""``trilemma runs show``: one run in full."""

from __future__ import annotations

import argparse

from trilemma.cli.output import YES, screen_width
from trilemma.cli.runs import add_ledger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="its id, or a name (the latest of it)")
    add_ledger(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.report.document import dumps
    from trilemma.report.runs import render_run, run_document
    from trilemma.report.wrapping import within
    from trilemma.runs.store import RunLedger, ledger_path

    with RunLedger(ledger_path(arguments.ledger), must_exist=True) as ledger:
        found = ledger.run(arguments.run)
        series, events = ledger.series(found.id), ledger.events(found.id)
    if arguments.json:
        print(dumps({"schema": "trilemma/run@1", **run_document(found, series=series, events=events)}))
    else:
        print(within(render_run(found, series=series, events=events), screen_width()))
    return YES
