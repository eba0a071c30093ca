"""``trilemma runs gate``: exit 1 where a run is worse than its baseline."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import number
from trilemma.cli.output import NO, YES, screen_width
from trilemma.cli.runs import add_ledger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="id, or name (the latest of it)")
    parser.add_argument("--baseline", required=True, metavar="RUN", help="what it is held against")
    parser.add_argument("--figure", required=True, metavar="NAME", help="what is compared")
    parser.add_argument(
        "--tolerance", type=number, default=0.02, metavar="SHARE", help="how much worse passes (default 0.02)"
    )
    parser.add_argument(
        "--better", choices=("higher", "lower"), help="which way it gets better (default: as its name says)"
    )
    add_ledger(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.report.document import dumps
    from trilemma.report.runs import gate_document, render_gate
    from trilemma.report.wrapping import within
    from trilemma.runs.comparing import gate
    from trilemma.runs.store import RunLedger, ledger_path

    with RunLedger(ledger_path(arguments.ledger), must_exist=True) as ledger:
        run_, baseline = ledger.run(arguments.run), ledger.run(arguments.baseline)
    found = gate(run_, baseline, arguments.figure, tolerance=arguments.tolerance, better=arguments.better)
    print(dumps(gate_document(found)) if arguments.json else within(render_gate(found), screen_width()))
    return YES if found.passed else NO
