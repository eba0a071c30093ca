"""``trilemma runs export``: runs for other tools."""

from __future__ import annotations

import argparse

from trilemma.cli.output import YES
from trilemma.cli.runs import add_ledger
from trilemma.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", choices=("json", "csv", "openmetrics", "parquet"), default="csv", help="form (default csv), on stdout"
    )
    parser.add_argument("--model", help="of this model alone")
    parser.add_argument("--tag", help="with this tag alone")
    parser.add_argument("-o", "--output", metavar="FILE", help="write Parquet there (extra: calibrate)")
    add_ledger(parser, json=False)


def run(arguments: argparse.Namespace) -> int:
    from trilemma.report.runs_export import as_csv, as_openmetrics
    from trilemma.runs.store import RunLedger, ledger_path

    with RunLedger(ledger_path(arguments.ledger), must_exist=True) as ledger:
        found = ledger.runs(model=arguments.model, tag=arguments.tag, most=1_000_000)
    if (arguments.to == "parquet") != (arguments.output is not None):
        raise InputError("-o FILE is for --to parquet, which needs it")
    if arguments.to == "parquet":
        from trilemma.report.runs_export import write_parquet

        write_parquet(found, arguments.output)
    elif arguments.to == "json":
        from trilemma.report.document import dumps
        from trilemma.report.runs import runs_document

        print(dumps(runs_document(found)))
    else:
        print((as_csv if arguments.to == "csv" else as_openmetrics)(found), end="")
    return YES
