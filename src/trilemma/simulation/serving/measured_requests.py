"""Requests that an engine answered, with the times at which it did: a trace with two columns more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.simulation.row_files import open_text, read_rows
from trilemma.simulation.serving.traces import TraceColumns, arrival_of, seconds_of
from trilemma.simulation.serving.traffic import Arrival

#: Requests of a file that are read.
MOST_MEASURED = 2000


class MeasuredRequest(NamedTuple):
    """A request, the seconds to its first token and to its last."""

    arrival: Arrival
    first_s: float
    whole_s: float


def read_measured(path: Path) -> list[MeasuredRequest]:
    """The first requests of ``path`` that were answered. Raises `InputError` where a column is missing or a time cannot be."""
    with open_text(path, "requests") as file:
        found = list(_read(itertools.islice(read_rows(file, path), MOST_MEASURED), path))
    if not found:
        raise InputError(f"{path.name} holds no request; give a CSV with a header or JSON lines")
    return found


def _read(rows: Iterator[tuple[int, Mapping[str, Any]]], path: Path) -> Iterator[MeasuredRequest]:
    columns: TraceColumns | None = None
    names: Mapping[str, str | None] = {}
    start_s = 0.0
    for line, row in rows:
        if columns is None:
            columns, names = TraceColumns.of(row, path), _names(row, path)
            start_s = seconds_of(row.get(columns.arrival), columns, path, line)
        arrival = arrival_of(row, columns, path, line, start_s)
        began_s = _number(row, names["began"] or columns.arrival, path, line)
        first_s, whole_s = (_number(row, str(names[what]), path, line) - began_s for what in ("first_token", "finish"))
        if not 0 < first_s <= whole_s:
            raise InputError(
                f"{path.name} line {line}: first token {first_s:g} s and end {whole_s:g} s after its start; give times of"
                " one clock"
            )
        yield MeasuredRequest(arrival, first_s, whole_s)


def _names(row: Mapping[str, Any], path: Path) -> dict[str, str | None]:
    known = read_data("simulation/traces.toml")["measured"]
    found = {what: next((name for name in spellings if name in row), None) for what, spellings in known.items()}
    for what in ("first_token", "finish"):
        if found[what] is None:
            raise InputError(
                f"{path.name} has no column for the {what.replace('_', ' ')} of a request; name it {known[what][0]}, in the"
                f" seconds of its arrival (it has {shorten(', '.join(map(str, row)), most=120)})"
            )
    return found


def _number(row: Mapping[str, Any], name: str, path: Path, line: int) -> float:
    try:
        value = float(row[name])
    except (KeyError, TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{path.name} line {line}: {name} {shorten(str(row.get(name)))!r} is not a number of seconds")
    return value
