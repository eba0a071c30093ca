"""``trilemma runs trend``: figures by the hour, and where they changed."""

from __future__ import annotations

import argparse

from trilemma.cli.output import NO, YES
from trilemma.cli.runs import add_ledger
from trilemma.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="id, or name (the latest of it)")
    parser.add_argument(
        "--figure", action="append", default=[], metavar="NAME", help="series to follow (default: every one)"
    )
    parser.add_argument("--alarm", action="store_true", help="exit 1 where a figure has changed for the worse")
    add_ledger(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.report.document import dumps
    from trilemma.report.runs import render_trends, trends_document
    from trilemma.runs.better import better_of, gain
    from trilemma.runs.store import RunLedger, ledger_path
    from trilemma.runs.trend import trend

    with RunLedger(ledger_path(arguments.ledger), must_exist=True) as ledger:
        found = ledger.run(arguments.run)
        events, names = ledger.events(found.id), arguments.figure or ledger.series(found.id)
        if not names:
            raise InputError(f"run {found.id} keeps no series; record it with trilemma.record(…) and log figures")
        trends = [trend(name, *ledger.points(found.id, name), events) for name in names]
    print(dumps(trends_document(trends)) if arguments.json else render_trends(trends))
    if not arguments.alarm:
        return YES
    worse = any(
        gain(change.before, change.after, better_of(one.figure)) < 0 for one in trends for change in one.changes
    )
    return NO if worse else YES
