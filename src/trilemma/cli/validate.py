"""``trilemma validate``: predicted against measured, over a whole table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trilemma.cli.arguments import add_models_dir, add_output_arguments, whole_or_none
from trilemma.cli.output import screen_width, show
from trilemma.errors import InputError, UnknownName, shorten
from trilemma.outside_files import written

if TYPE_CHECKING:
    from trilemma.measured.tables import MeasuredTable
    from trilemma.measured.validation import Validation

_YES, _NO = 0, 1
#: Tables longer than this show how far they are.
_LONG = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tables",
        metavar="TABLE.csv",
        nargs="+",
        help="measured table, its kind recognised by its columns; several for --board",
    )
    add_models_dir(parser)
    parser.add_argument(
        "--where", metavar="C=V|C~REGEX", action="append", default=[], help="judge only rows with this; repeatable"
    )
    parser.add_argument(
        "--macro", metavar="COLUMN", action="append", default=[], help="also medians over the values of a column"
    )
    parser.add_argument(
        "--require",
        metavar="METRIC.STAT<=X",
        action="append",
        default=[],
        help="exit 1 when this bar is missed; also macro.METRIC.STAT and by.CLASS=VALUE.METRIC.STAT; repeatable",
    )
    parser.add_argument(
        "--holdout", metavar="COLUMN[,COLUMN]", help="refit fitted terms with each value (or combination) left out"
    )
    parser.add_argument(
        "--by",
        metavar="METRIC|CLASS",
        help="also errors by class: of one metric, or by one class (origin, distance, era)",
    )
    parser.add_argument(
        "--assume",
        metavar="COLUMN=VALUE",
        action="append",
        default=[],
        help="fill the empty cells of a column; repeatable",
    )
    parser.add_argument(
        "--worst", metavar="N", type=whole_or_none, default=5, help="how many of the worst rows to show"
    )
    parser.add_argument("--rows", metavar="FILE", help="write predicted and measured row by row (CSV)")
    parser.add_argument(
        "--board", metavar="FILE.html",
        help="write one page of all tables: errors by who measured, engine, card, age and trust, and what is stale",
    )  # fmt: skip
    parser.add_argument(
        "--peers", metavar="FILE.csv", help="with --board: what other tools predict, as tool,id,metric,predicted"
    )
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.board is not None:
        return _board(arguments)
    if len(arguments.tables) > 1:
        raise InputError(f"{len(arguments.tables)} tables are judged together with --board FILE.html alone; give one")
    if arguments.peers is not None:
        raise InputError("--peers stands beside our figures on a board; give --board FILE.html too")
    from trilemma.columns import document_of
    from trilemma.measured.requirements import check, parse_requirement
    from trilemma.measured.row_file import write_rows
    from trilemma.report.document import dumps
    from trilemma.report.validation import (
        ValidationDocument,
        render_class,
        render_classes,
        render_outcomes,
        render_validation,
    )

    validation, metrics = _judged(arguments.tables[0], arguments)
    if arguments.rows:
        write_rows(arguments.rows, validation)
    document = document_of(validation)
    outcomes = tuple(check(parse_requirement(text), document) for text in arguments.require)
    if arguments.json:
        print(dumps(document_of(ValidationDocument(validation=validation, required=outcomes))))
    else:
        show(render_validation(validation, worst=min(arguments.worst, 1000), width=screen_width()))
        if arguments.by:
            gathered = render_classes if arguments.by in metrics else render_class
            show("\n" + gathered(validation, arguments.by, width=screen_width()))
        if outcomes:
            show("\n" + render_outcomes(outcomes))
        if arguments.explain:
            show("\n" + _assumptions(validation))
    return _YES if all(outcome.met for outcome in outcomes) else _NO


def _judged(path: str, arguments: argparse.Namespace) -> tuple[Validation, tuple[str, ...]]:
    """One table judged as the options say, and the metrics of its kind."""
    import importlib

    from trilemma.measured.assumptions import filled, noted, parse_assumptions
    from trilemma.measured.requirements import check_names, parse_requirement, statistics_of
    from trilemma.measured.selection import parse_condition, select
    from trilemma.measured.tables import read_table
    from trilemma.measured.validation import summarise

    table = read_table(path)
    judge = importlib.import_module(_module(table))
    for requirement in map(parse_requirement, arguments.require):
        check_names(requirement, {metric: statistics_of(metric) for metric in judge.METRICS})
    classes = ("origin", *getattr(judge, "CLASSES", ()))
    if arguments.by and arguments.by not in (*judge.METRICS, *classes):
        raise UnknownName("metric", arguments.by, (*judge.METRICS, *classes), hint="in --by")
    _check_columns((*table.columns, *getattr(judge, "GROUPS", ())), arguments)
    assumptions = parse_assumptions(arguments.assume, table.columns)
    rows = select(table.rows, [parse_condition(text, table.columns) for text in arguments.where])
    if not rows:
        raise InputError(f"no row of {shorten(path)} is left to judge; loosen --where")
    holdout = tuple(part.strip() for part in (arguments.holdout or "").split(",") if part.strip())
    with _Progress(len(rows)) as progress:
        judgements, refitted = judge.judge(
            filled(rows, assumptions), models_dir=arguments.models, holdout=holdout, progress=progress
        )
    validation = summarise(
        table.kind.name,
        noted(judgements, rows, assumptions),
        macro_columns=arguments.macro,
        broken=() if arguments.where else table.broken,
        holdout=refitted,
    )
    return validation, tuple(judge.METRICS)


def _board(arguments: argparse.Namespace) -> int:
    """All tables on one page."""
    import datetime
    from pathlib import Path

    from trilemma.measured.board import board
    from trilemma.quantities import counted
    from trilemma.report.board import board_page

    for option in ("json", "rows", "require", "by", "macro"):
        if getattr(arguments, option):
            raise InputError(f"--{option} is for one table on the screen; leave it out beside --board")
    target = Path(arguments.board)
    if not target.parent.is_dir():
        raise InputError(
            f"--board {shorten(arguments.board)}: there is no folder {shorten(str(target.parent))}; make it first"
        )
    names = [Path(one).name for one in arguments.tables]
    named = [name if names.count(name) == 1 else path for name, path in zip(names, arguments.tables, strict=True)]
    tables = {name: _judged(path, arguments)[0] for name, path in zip(named, arguments.tables, strict=True)}
    made = board(tables, on=datetime.date.today(), peers=arguments.peers)
    with written(target, what="--board"):
        target.write_text(board_page(made), encoding="utf-8")
    show(f"{shorten(arguments.board)}: {counted(len(made.figures), 'figure')} of {counted(len(tables), 'table')}")
    return _YES


def _module(table: MeasuredTable) -> str:
    if table.kind.module is None:
        raise InputError(f"{shorten(table.name)}: {table.kind.name} tables are recognised but not judged yet")
    return table.kind.module


def _check_columns(columns: Sequence[str], arguments: argparse.Namespace) -> None:
    for option, names in (("--macro", arguments.macro), ("--holdout", (arguments.holdout or "").split(","))):
        for name in names:
            if name.strip() and name.strip() not in columns:
                raise UnknownName("column", name, columns, hint=f"in {option}")


def _assumptions(validation: Validation) -> str:
    lines = ["assumed or left out, row by row"]
    for judgement in validation.judgements:
        notes = [*judgement.assumed, *(f"not judged: {what}" for what in judgement.left_out)]
        if judgement.used and notes:
            lines.append(f"  {judgement.row_id}: {'; '.join(notes)}")
    return "\n".join(lines)


class _Progress:
    """How far a long table is, on stderr and only for a person."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.shown = rows > _LONG and sys.stderr.isatty()

    def __enter__(self) -> Callable[[int], None]:
        return self._show

    def _show(self, done: int) -> None:
        if self.shown and done % 50 == 0:
            print(f"\r{done} of {self.rows} rows", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.shown:
            print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
