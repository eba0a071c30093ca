"""``trilemma calibrate serving-table TABLE.csv``: the shipped terms of serving from a table of measured runs."""

from __future__ import annotations

import argparse

from trilemma.cli.arguments import add_models_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE.csv", help="measured serving speed, one figure a row")
    add_models_dir(parser)
    parser.add_argument(
        "--where", metavar="C=V|C~REGEX", action="append", default=[], help="fit only rows with this; repeatable"
    )
    parser.add_argument("--source", required=True, metavar="TEXT", help="where the figures come from, kept in the file")
    parser.add_argument("--as-of", required=True, metavar="DATE", help="day of the figures, such as 2026-11-29")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.json", help="file to write")
    parser.add_argument("--fresh", action="store_true", help="start from the spec sheet, not from the shipped terms")


def run(arguments: argparse.Namespace) -> int:
    import datetime
    from pathlib import Path

    from trilemma.errors import InputError, shorten
    from trilemma.measured.selection import parse_condition, select
    from trilemma.measured.serving.speed.document import to_text
    from trilemma.measured.serving.speed.refit import fit_rows
    from trilemma.measured.tables import read_table
    from trilemma.timing import serving_terms

    try:
        as_of = datetime.date.fromisoformat(arguments.as_of)
    except ValueError:
        raise InputError(f"--as-of {shorten(arguments.as_of)!r} is not a date such as 2026-11-29") from None
    table = read_table(arguments.table)
    if table.kind.name != "serving-speed":
        raise InputError(f"{shorten(arguments.table)} is a {table.kind.name} table; give one of serving speed")
    rows = select(table.rows, [parse_condition(text, table.columns) for text in arguments.where])
    start = None if arguments.fresh else serving_terms.shipped()
    terms = fit_rows(rows, models_dir=arguments.models, source=arguments.source, start=start)
    text = to_text(terms, serving_terms.priors(), as_of=as_of.isoformat(), made_by="trilemma calibrate serving-table")
    try:
        Path(arguments.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"-o {shorten(arguments.output)} cannot be written: {error.strerror}") from None
    print(f"{len(rows)} rows read, {len(terms.spreads)} classes of error bars; written to {arguments.output}")
    return 0
