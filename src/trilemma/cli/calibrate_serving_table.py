"""``trilemma calibrate serving-table TABLE.csv``: the shipped terms of serving from a table of measured runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trilemma.cli.arguments import add_models_dir
from trilemma.outside_files import written

if TYPE_CHECKING:
    from trilemma.measured.tables import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE.csv", help="measured serving speed, one figure a row")
    add_models_dir(parser)
    parser.add_argument(
        "--where", metavar="C=V|C~REGEX", action="append", default=[], help="fit only rows with this; repeatable"
    )
    parser.add_argument(
        "--also",
        metavar="TABLE.csv",
        action="append",
        default=[],
        help="more rows to fit, by the same --where; repeatable",
    )
    parser.add_argument(
        "--others", metavar="TABLE.csv", action="append", default=[],
        help="rows of other publishers: not fitted, but bounds are to hold them too; repeatable",
    )  # fmt: skip
    parser.add_argument("--source", required=True, metavar="TEXT", help="where the figures come from, kept in the file")
    parser.add_argument("--as-of", required=True, metavar="DATE", help="day of the figures, such as 2026-11-29")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.json", help="file to write")
    parser.add_argument("--fresh", action="store_true", help="start from the spec sheet, not from the shipped terms")


def run(arguments: argparse.Namespace) -> int:
    import datetime
    from pathlib import Path

    from trilemma.errors import InputError, shorten
    from trilemma.measured.serving.speed.document import to_text
    from trilemma.measured.serving.speed.refit import fit_rows
    from trilemma.timing import serving_terms

    try:
        as_of = datetime.date.fromisoformat(arguments.as_of)
    except ValueError:
        raise InputError(f"--as-of {shorten(arguments.as_of)!r} is not a date such as 2026-11-29") from None
    conditions = arguments.where
    rows = [row for path in (arguments.table, *arguments.also) for row in _rows(path, conditions)]
    others = [row for path in arguments.others for row in _rows(path, [])]
    start = None if arguments.fresh else serving_terms.shipped()
    terms = fit_rows(rows, models_dir=arguments.models, source=arguments.source, start=start, others=others)
    text = to_text(terms, serving_terms.priors(), as_of=as_of.isoformat(), made_by="trilemma calibrate serving-table")
    with written(arguments.output, what="-o"):
        Path(arguments.output).write_text(text, encoding="utf-8")
    print(f"{len(rows)} rows read, {len(terms.spreads)} classes of error bars; written to {arguments.output}")
    return 0


def _rows(path: str, conditions: list[str]) -> list[Row]:
    from trilemma.errors import InputError, shorten
    from trilemma.measured.selection import parse_condition, select
    from trilemma.measured.tables import read_table

    table = read_table(path)
    if table.kind.name != "serving-speed":
        raise InputError(f"{shorten(path)} is a {table.kind.name} table; give one of serving speed")
    return list(select(table.rows, [parse_condition(text, table.columns) for text in conditions]))
