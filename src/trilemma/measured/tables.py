"""Measured tables: bounded reading of a CSV file, its kind recognised by its columns, its cells read with bounds.

A table comes from outside, so a reader never trusts its size, its encoding or its numbers. Adding a kind of table is one
module that offers ``judge`` and one row of `KINDS`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trilemma.errors import InputError, TrilemmaError, shorten
from trilemma.outside_files import read_text

MOST_BYTES = 64 * 2**20
MOST_ROWS = 10**6
MOST_COLUMNS = 1000
MOST_CELL = 2**16
_MOST_ID = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class TableKind:
    """A kind of measured table: ``columns`` tell it apart; ``module`` judges it (None: recognised, not judged yet).

    The module offers ``judge(rows, settings)``; see `trilemma.measured.serving.memory.judge.judge`.
    """

    name: str
    columns: frozenset[str]
    module: str | None = None


KINDS: tuple[TableKind, ...] = (
    TableKind(
        name="serving-memory",
        columns=frozenset(
            {
                "engine",
                "model",
                "gpu",
                "tp",
                "weights_gib_per_gpu",
                "kv_cache_gib_per_gpu",
                "kv_cache_tokens",
                "outcome",
            }
        ),
        module="trilemma.measured.serving.memory.judge",
    ),
    TableKind(
        name="serving-speed",
        columns=frozenset({"model", "gpu", "isl", "osl", "metric", "value"}),
        module="trilemma.measured.serving.speed.judge",
    ),
    *(
        TableKind(
            name="energy",
            columns=frozenset({"model", "gpu", "output_tok_s_total", told}),
            module="trilemma.measured.serving.energy.judge",
        )
        for told in ("j_per_output_token", "power_w_per_gpu")
    ),
    TableKind(
        name="power-caps",
        columns=frozenset({"model", "gpu", "engine", "cap_w", "power_w", "tok_s"}),
        module="trilemma.measured.serving.power_caps.judge",
    ),
    TableKind(
        name="training",
        columns=frozenset({"model", "gpu", "measured_metric", "value"}),
        module="trilemma.measured.training.judge",
    ),
    TableKind(
        name="kernels",
        columns=frozenset({"gpu", "op", "dtype", "latency_us"}),
        module="trilemma.measured.kernels.judge",
    ),
    TableKind(name="kernels", columns=frozenset({"latency", "framework"}), module="trilemma.measured.kernels.judge"),
    TableKind(name="kernels", columns=frozenset({"latency", "message_size"}), module="trilemma.measured.kernels.judge"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row as text: ``cells`` of non-empty columns, its ``id`` (its line where the table has none) and its line."""

    id: str
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """The cell, "" when empty."""
        return self.cells.get(column, "")

    def number(self, column: str, *, low: float, high: float) -> float | None:
        """The cell as a finite number within ``low … high``; None when empty. Raises `UnusableRow`."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            raise UnusableRow(f"{column} {shorten(text)!r} is not a number") from None
        if not math.isfinite(value):
            raise UnusableRow(f"{column} {shorten(text)!r} is not a finite number")
        if not low <= value <= high:
            raise UnusableRow(f"{column} {shorten(text)} is outside {low:g} to {high:g}")
        return value

    def whole(self, column: str, *, low: int, high: int) -> int | None:
        """The cell as a whole number within ``low … high``; None when empty. Raises `UnusableRow`."""
        value = self.number(column, low=low, high=high)
        if value is None:
            return None
        if value != math.floor(value):
            raise UnusableRow(f"{column} {shorten(self.text(column))!r} is not a whole number")
        return int(value)

    def flag(self, column: str) -> bool | None:
        """The cell as yes or no; None when empty. Raises `UnusableRow`."""
        text = self.text(column).lower()
        if not text:
            return None
        if text in ("true", "yes", "1", "on"):
            return True
        if text in ("false", "no", "0", "off"):
            return False
        raise UnusableRow(f"{column} {shorten(text)!r} is neither True nor False")


class UnusableRow(TrilemmaError):
    """One row cannot be judged; the message is the reason that is reported. It never ends the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTable:
    """A measured table as read: its kind, its usable rows, and those whose shape is broken with the reason."""

    name: str
    kind: TableKind
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    broken: tuple[tuple[str, str], ...] = ()


def read_table(path: str | Path) -> MeasuredTable:
    """Read a measured table (CSV, UTF-8, a header line; or parquet, by its suffix).

    Raises `InputError` for a file that is missing, larger than 64 MiB, not UTF-8, holds NUL bytes, has a header with
    missing, doubled or unknown columns, or more than a million rows.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    text = _bounded_text(path)
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        columns = _header(next(reader, []), path)
        kind = recognise(columns, path)
        rows, broken = _rows(reader, columns, path)
        if "source_ref" in columns and "origin" not in columns:
            columns = (*columns, "origin")
    except csv.Error as error:
        raise InputError(f"{shorten(str(path))}: line {reader.line_num} is not CSV: {error}") from None
    return MeasuredTable(name=path.name, kind=kind, columns=columns, rows=tuple(rows), broken=tuple(broken))


def _read_parquet(path: Path) -> MeasuredTable:
    from trilemma.measured.parquet_rows import parquet_cells

    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise InputError(f"{shorten(str(path))}: larger than {MOST_BYTES >> 20} MiB; split the table")
    columns, values = parquet_cells(path, most_rows=MOST_ROWS, most_columns=MOST_COLUMNS)
    kind = recognise(columns, path)
    rows = tuple(
        Row(id=f"row {line}", line=line, cells={c: v for c, v in zip(columns, cells, strict=True) if v})
        for line, cells in enumerate(values, start=1)
    )
    return MeasuredTable(name=path.name, kind=kind, columns=columns, rows=rows)


def recognise(columns: Sequence[str], path: Path) -> TableKind:
    """The first kind whose telling columns are all there. Raises `InputError` naming the columns that come nearest."""
    present = set(columns)
    for kind in KINDS:
        if kind.columns <= present:
            return kind
    nearest = max(KINDS, key=lambda kind: len(kind.columns & present) / len(kind.columns))
    missing = ", ".join(sorted(nearest.columns - present))
    raise InputError(
        f"{shorten(str(path))}: not a measured table that is known here; nearest is {nearest.name},"
        f" which also needs the columns {missing}"
    )


def _bounded_text(path: Path) -> str:
    text = read_text(path, most_bytes=MOST_BYTES, give="give a measured table (CSV in UTF-8), or a part of it")
    if "\0" in text:
        raise InputError(f"{shorten(str(path))}: holds NUL bytes; give a UTF-8 CSV file")
    return text


def _header(cells: Sequence[str], path: Path) -> tuple[str, ...]:
    columns = tuple(cell.strip() for cell in cells)
    if not any(columns):
        raise InputError(f"{shorten(str(path))}: empty; a measured table starts with a line of column names")
    if len(columns) > MOST_COLUMNS:
        raise InputError(f"{shorten(str(path))}: {len(columns)} columns; at most {MOST_COLUMNS} are read")
    named = [column for column in columns if column]
    doubled = sorted({column for column in named if named.count(column) > 1})
    if doubled:
        raise InputError(f"{shorten(str(path))}: the column {shorten(doubled[0])!r} appears twice; rename one")
    return columns


def origin_of(source_ref: str) -> str:
    """Who published a row: the first word of its ``source_ref``, without revision and file (``owner/name@…:path``)."""
    first = source_ref.split(maxsplit=1)[0] if source_ref.split() else ""
    return first.partition("@")[0]


def _rows(reader: Any, columns: tuple[str, ...], path: Path) -> tuple[list[Row], list[tuple[str, str]]]:
    rows: list[Row] = []
    broken: list[tuple[str, str]] = []
    for count, values in enumerate(reader, start=1):
        if count > MOST_ROWS:
            raise InputError(f"{shorten(str(path))}: more than {MOST_ROWS:,} rows; split the table")
        if not any(values):
            continue
        row_id = (
            " ".join(values[columns.index("id")].split())[:_MOST_ID]
            if "id" in columns and len(values) == len(columns)
            else ""
        )
        row_id = row_id or f"line {reader.line_num}"
        if len(values) != len(columns):
            broken.append((row_id, f"{len(values)} cells where the header has {len(columns)}"))
        elif max(map(len, values)) > MOST_CELL:
            broken.append((row_id, f"a cell longer than {MOST_CELL} characters"))
        else:
            cells = {column: value.strip() for column, value in zip(columns, values, strict=True)}
            if "source_ref" in columns and not cells.get("origin"):
                cells["origin"] = origin_of(cells["source_ref"])
            rows.append(Row(id=row_id, line=reader.line_num, cells={c: v for c, v in cells.items() if c and v}))
    return rows, broken
