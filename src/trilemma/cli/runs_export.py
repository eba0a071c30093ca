"""``trilemma runs export``: runs for other tools."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from trilemma.cli.output import YES
from trilemma.cli.runs import add_ledger
from trilemma.errors import InputError

if TYPE_CHECKING:
    from trilemma.runs.run import LedgerRun
    from trilemma.runs.store import RunLedger


#: Rows of measured tables.
_ROWS = ("serving-rows", "training-rows")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        metavar="FORM",
        choices=("json", "csv", "openmetrics", "parquet", "mlflow", *_ROWS),
        default="csv",
        help="json, csv (default), openmetrics, parquet or mlflow, on stdout; serving-rows, training-rows: measured rows to"
        " give away, without anybody's names",
    )
    parser.add_argument("--model", help="of this model alone")
    parser.add_argument("--tag", help="with this tag alone")
    parser.add_argument("-o", "--output", metavar="FILE", help="write Parquet there (extra: calibrate)")
    parser.add_argument("--url", metavar="URL", help="send to the MLflow server there (token: MLFLOW_TRACKING_TOKEN)")
    parser.add_argument("--experiment", default="trilemma", metavar="NAME", help="of MLflow (default trilemma)")
    add_ledger(parser, json=False)


def run(arguments: argparse.Namespace) -> int:
    if (arguments.to == "mlflow") != (arguments.url is not None):
        raise InputError("--url URL is for --to mlflow, which needs it")
    from trilemma.report.runs_export import as_csv, as_openmetrics
    from trilemma.runs.store import RunLedger, ledger_path

    with RunLedger(ledger_path(arguments.ledger), must_exist=True) as ledger:
        found = ledger.runs(model=arguments.model, tag=arguments.tag, most=1_000_000)
        if arguments.to == "mlflow":
            return _sent(arguments, ledger, found)
    if (arguments.to == "parquet") != (arguments.output is not None):
        raise InputError("-o FILE is for --to parquet, which needs it")
    if arguments.to == "parquet":
        from trilemma.report.runs_export import write_parquet

        write_parquet(found, arguments.output)
    elif arguments.to in _ROWS:
        _give_away(found, training=arguments.to == "training-rows")
    elif arguments.to == "json":
        from trilemma.report.document import dumps
        from trilemma.report.runs import runs_document

        print(dumps(runs_document(found)))
    else:
        print((as_csv if arguments.to == "csv" else as_openmetrics)(found), end="")
    return YES


def _give_away(runs: list[LedgerRun], *, training: bool) -> None:
    from trilemma.quantities import counted
    from trilemma.report.contributed_rows import contributed_rows

    rows = contributed_rows(runs, training=training)
    print(rows.text, end="")
    if rows.left_out:
        why = "another kind, crashed, or of no model of the catalogue"
        print(f"{counted(rows.left_out, 'run')} left out: {why}", file=sys.stderr)


def _sent(arguments: argparse.Namespace, ledger: RunLedger, runs: list[LedgerRun]) -> int:
    from trilemma.quantities import counted
    from trilemma.runs.mlflow import MlflowServer, send_runs

    server = MlflowServer(url=arguments.url, token=os.environ.get("MLFLOW_TRACKING_TOKEN", ""))
    sent, there = send_runs(server, ledger, runs, experiment=arguments.experiment)
    print(
        f"{counted(sent, 'run')} sent to experiment {arguments.experiment}" + (f", {there} were there" if there else "")
    )
    return YES
