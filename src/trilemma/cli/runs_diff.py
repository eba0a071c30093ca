"""``trilemma runs diff``: two runs side by side."""

from __future__ import annotations

import argparse

from trilemma.cli.output import YES, screen_width
from trilemma.cli.runs import add_ledger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", help="id, or name (the latest of it)")
    parser.add_argument("after", metavar="AFTER", help="id, or name (the latest of it)")
    add_ledger(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.report.document import dumps
    from trilemma.report.runs import difference_document, render_difference
    from trilemma.runs.comparing import difference
    from trilemma.runs.store import RunLedger, ledger_path

    with RunLedger(ledger_path(arguments.ledger), must_exist=True) as ledger:
        found = difference(ledger, ledger.run(arguments.before), ledger.run(arguments.after))
    print(dumps(difference_document(found)) if arguments.json else render_difference(found, width=screen_width()))
    return YES
