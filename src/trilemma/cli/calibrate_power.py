"""``trilemma calibrate power TABLE.csv``: what idle, arithmetic and memory draw of a board's limit, by measured watts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trilemma.cli.arguments import add_models_dir
from trilemma.outside_files import written

if TYPE_CHECKING:
    from trilemma.measured.tables import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", metavar="TABLE.csv", nargs="+", help="measured energy, one run a row")
    add_models_dir(parser)
    parser.add_argument(
        "--others", metavar="TABLE.csv", action="append", default=[],
        help="runs on other chips: not fitted, but bounds of chips that nobody measured hold them too; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--caps", metavar="TABLE.csv", action="append", default=[],
        help="curves of power caps: their loads without a cap tell terms of their chips; repeatable",
    )  # fmt: skip
    parser.add_argument("--source", required=True, metavar="TEXT", help="where the figures come from, kept in the file")
    parser.add_argument("--as-of", required=True, metavar="DATE", help="day of the figures, such as 2026-11-29")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.json", help="file to write")


def run(arguments: argparse.Namespace) -> int:
    import datetime
    from pathlib import Path

    from trilemma.errors import InputError, shorten
    from trilemma.measured.serving.energy.fit import power_text
    from trilemma.measured.serving.energy.judge import fit_energy_rows
    from trilemma.measured.serving.power_caps.judge import without_cap

    try:
        as_of = datetime.date.fromisoformat(arguments.as_of)
    except ValueError:
        raise InputError(f"--as-of {shorten(arguments.as_of)!r} is not a date such as 2026-11-29") from None
    rows = [row for path in arguments.tables for row in _rows(path)]
    others = [row for path in arguments.others for row in _rows(path)]
    capped = [row for path in arguments.caps for row in _rows(path, "power-caps")]
    caps = without_cap(capped, models_dir=arguments.models) if capped else None
    fitted = fit_energy_rows(rows, others=others, caps=caps, models_dir=arguments.models)
    text = power_text(fitted, source=arguments.source, as_of=as_of.isoformat())
    with written(arguments.output, what="-o"):
        Path(arguments.output).write_text(text, encoding="utf-8")
    used = sum(count for count, _ in fitted.counts.values())
    print(
        f"{used} of {len(rows) + len(capped)} rows used, {len(fitted.chips)} kinds of chips; written to {arguments.output}"
    )
    return 0


def _rows(path: str, kind: str = "energy") -> tuple[Row, ...]:
    from trilemma.errors import InputError, shorten
    from trilemma.measured.tables import read_table

    table = read_table(path)
    if table.kind.name != kind:
        raise InputError(f"{shorten(path)} is a {table.kind.name} table; give one of {kind}")
    return table.rows
