"""``trilemma calibrate training TABLE.csv``: coefficients of training time and their intervals, fitted to a table."""

from __future__ import annotations

import argparse
from pathlib import Path

from trilemma.cli.output import YES
from trilemma.outside_files import written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE.csv", help="measured training table")
    parser.add_argument(
        "--where", metavar="C=V|C~REGEX", action="append", default=[], help="fit only rows with this; repeatable"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the coefficients (default: print them)")
    parser.add_argument("--models", metavar="DIR", help="look hub ids up as DIR/<org>--<name>/config.json first")


def run(arguments: argparse.Namespace) -> int:
    from trilemma.measured.training.document import fit_table

    text = fit_table(arguments.table, where=arguments.where, models_dir=arguments.models)
    if arguments.output is None:
        print(text, end="")
        return YES
    with written(arguments.output, what="-o"):
        Path(arguments.output).write_text(text, encoding="utf-8")
    return YES
