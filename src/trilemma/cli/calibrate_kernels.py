"""``trilemma calibrate kernels``: kernel coefficients from published tables of operator latencies."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trilemma.cli.output import screen_width, show
from trilemma.errors import InputError, shorten

if TYPE_CHECKING:
    from trilemma.measured.kernels.calibration import KernelFits
    from trilemma.measured.kernels.tables import KernelTables

_YES, _NO = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tables", metavar="TABLE.parquet", nargs="+", help="tables of kernel latencies (see docs/calibration.md)"
    )
    parser.add_argument("--out", metavar="FOLDER", help="write one data file per accelerator and the ladder there")
    parser.add_argument(
        "--only",
        metavar="KERNEL",
        action="append",
        default=[],
        help="fit only this kernel and keep what FOLDER has of others; repeatable",
    )
    parser.add_argument("--quiet", action="store_true", help="print the summary alone")


def run(arguments: argparse.Namespace) -> int:
    from trilemma.measured.kernels.calibration import calibrate
    from trilemma.measured.kernels.report import lines
    from trilemma.measured.kernels.tables import read_kernel_tables
    from trilemma.report.kernel_fits import render_lines
    from trilemma.timing.kernels.formulas import parameters_of

    for kernel in arguments.only:
        parameters_of(kernel)
    tables = read_kernel_tables(arguments.tables)
    if arguments.only:
        tables.groups = [rows for rows in tables.groups if rows.kernel in arguments.only]
    if not tables.groups:
        raise InputError("no row of these tables can be fitted; see trilemma calibrate kernels --help")
    found = calibrate(tables, progress=_silent if arguments.quiet else _tell)
    if arguments.out:
        _write(Path(arguments.out), found, arguments.tables, arguments.only)
    report = lines((fitted.judged, fitted.ratio) for fitted in found)
    print(
        f"{tables.rows:,} rows read, {len(found)} groups fitted; mean error on shapes left out, by accelerator and engine"
    )
    show(render_lines(report, width=screen_width()))
    print("\nleft out\n" + _left_out(tables))
    return _YES if all(line.met for line in report) else _NO


def _write(folder: Path, found: list[KernelFits], names: list[str], only: list[str]) -> None:
    """Data files of the cards found and the ladder; with ``only`` the other kernels of files that are there stay."""
    from trilemma.measured.kernels.calibration import card_document, ladder_document
    from trilemma.measured.kernels.columns import table_rules

    rules = table_rules()
    header = {"schema": 1, "as_of": str(rules["as_of"]), "source": rules["source"]}
    header["tables"] = sorted(Path(name).name for name in names)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for accelerator in sorted({fitted.rows.accelerator for fitted in found}):
            path = folder / f"{accelerator}.json"
            document = card_document(accelerator, found, header)
            if only and path.is_file():
                document = _merged_card(json.loads(path.read_text(encoding="utf-8")), document, only)
            path.write_text(_dumps(document), encoding="utf-8")
        path = folder / "ladder.json"
        ladder = ladder_document(found, header)
        if only and path.is_file():
            ladder = _merged_ladder(json.loads(path.read_text(encoding="utf-8")), ladder, only)
        path.write_text(json.dumps(ladder, indent=1) + "\n", encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{shorten(str(folder))}: cannot be written: {shorten(str(error))}") from None


def _merged_card(old: dict[str, Any], new: dict[str, Any], only: list[str]) -> dict[str, Any]:
    kept = [entry for entry in old["kernels"] if entry["kernel"] not in only]
    tables = sorted({*old["tables"], *new["tables"]})
    entries = sorted([*kept, *new["kernels"]], key=lambda entry: entry["kernel"])
    return {**new, "tables": tables, "kernels": entries}


def _merged_ladder(old: dict[str, Any], new: dict[str, Any], only: list[str]) -> dict[str, Any]:
    spread = {
        rung: {**old["spread"].get(rung, {}), **{kernel: factors[kernel] for kernel in only}}
        for rung, factors in new["spread"].items()
    }
    tables = sorted({*old["tables"], *new["tables"]})
    return {**new, "tables": tables, "cards": {**old["cards"], **new["cards"]}, "spread": spread}


def _dumps(document: dict[str, Any]) -> str:
    """One fit a line: a change of one fit is a change of one line."""
    entries = document["kernels"]
    head = json.dumps({**document, "kernels": []}, indent=1)
    body = ",\n".join("  " + json.dumps(entry, separators=(",", ":")) for entry in entries)
    return head.replace('"kernels": []', f'"kernels": [\n{body}\n ]') + "\n"


def _left_out(tables: KernelTables) -> str:
    return "\n".join(f"  {rows:>7,}  {reason}" for reason, rows in sorted(tables.left_out.items()) if rows)


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _silent(_: str) -> None:
    return None
