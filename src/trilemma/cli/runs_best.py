"""``trilemma runs best``: the best known runs of a model."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import whole_number
from trilemma.cli.output import NO, YES, screen_width
from trilemma.cli.runs import add_ledger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--figure", required=True, metavar="NAME", help="what is compared, such as tokens_per_s_per_gpu"
    )
    parser.add_argument(
        "--better", choices=("higher", "lower"), help="which way it gets better (default: as its name says)"
    )
    parser.add_argument("--model", help="of this model alone")
    parser.add_argument("--tag", help="with this tag alone")
    parser.add_argument("--most", metavar="N", type=whole_number, default=10, help="how many (default 10)")
    add_ledger(parser)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.report.document import dumps
    from trilemma.report.runs import render_runs, runs_document
    from trilemma.runs.comparing import best
    from trilemma.runs.store import RunLedger, ledger_path

    with RunLedger(ledger_path(arguments.ledger), must_exist=True) as ledger:
        runs = ledger.runs(model=arguments.model, tag=arguments.tag, most=1_000_000)
    found = best(runs, arguments.figure, better=arguments.better)[: arguments.most]
    print(
        dumps(runs_document(found))
        if arguments.json
        else render_runs(found, width=screen_width(), figure=arguments.figure)
    )
    return YES if found else NO
