"""Traces of real requests, read a line at a time: CSV or JSON lines, plain or gzip, of any size.

A file from outside is data: lines are bounded, every number is checked, and a line that cannot be is named with what to do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.simulation.row_files import open_text, read_rows
from trilemma.simulation.serving.traffic import Arrival

#: Tokens of a prompt or an answer, and stretches of a prompt.
_MOST_TOKENS, _MOST_STRETCHES = 2**30, 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceColumns:
    """Where a file says what: the names of its columns, the unit of its times in seconds, tokens of a stretch."""

    arrival: str
    input: str
    output: str
    stretches: str | None
    session: str | None
    tenant: str | None
    priority: str | None
    adapter: str | None
    unit_s: float
    stretch_tokens: int

    @classmethod
    def of(cls, names: Iterable[str], path: Path) -> TraceColumns:
        """The columns of a file with these ``names``. Raises `InputError` where one that is needed is missing."""
        there, known = list(names), read_data("simulation/traces.toml")
        found: dict[str, str | None] = {}
        for what, spellings in known["columns"].items():
            if what != "source":
                found[what] = next((name for name in spellings if name in there), None)
        for what in ("arrival", "input", "output"):
            if found[what] is None:
                usual = ", ".join(known["columns"][what][:5])
                raise InputError(
                    f"{path.name} has no column for the {what} of a request; name it one of {usual}"
                    f" (it has {shorten(', '.join(map(str, there)), most=120)})"
                )
        form = next((one for one in known["format"] if all(name in there for name in one["has"])), None)
        return cls(
            **cast(Any, found),
            unit_s=1.0 if form is None else float(form["unit_s"]),
            stretch_tokens=0 if form is None else int(form["stretch_tokens"]),
        )


def read_trace(
    path: Path, *, most: int | None = None, begin_s: float = 0.0, span_s: float = math.inf
) -> Iterator[Arrival]:
    """The requests of ``path`` in the order of time, the first at 0 s: ``most`` of those that arrive from ``begin_s`` on within
    ``span_s``. Raises `InputError` that names the line where one cannot be."""
    arrivals = _arrivals(path)
    after = itertools.dropwhile(lambda one: one.arrival_s < begin_s, arrivals)
    within = itertools.takewhile(lambda one: one.arrival_s < begin_s + span_s, after)
    chosen = (one._replace(arrival_s=one.arrival_s - begin_s) for one in within)
    return itertools.islice(chosen, most)


def _arrivals(path: Path) -> Iterator[Arrival]:
    with open_text(path, "trace") as file:
        rows, columns, first, before, many = read_rows(file, path), None, 0.0, -math.inf, 0
        for line, row in rows:
            if columns is None:
                columns = TraceColumns.of(row, path)
                first = seconds_of(row.get(columns.arrival), columns, path, line)
            arrival = arrival_of(row, columns, path, line, first)
            if arrival.arrival_s < before:
                raise InputError(
                    f"{path.name} line {line}: it arrives {before - arrival.arrival_s:.6g} s before the line above; sort"
                    " the trace by time"
                )
            before, many = arrival.arrival_s, many + 1
            yield arrival
        if not many:
            raise InputError(f"{path.name} holds no request; give a CSV with a header or JSON lines")


def arrival_of(row: Mapping[str, Any], columns: TraceColumns, path: Path, line: int, first: float) -> Arrival:
    """The request of a line; ``first`` is when the file begins."""
    stretches: tuple[Any, ...] = ()
    if columns.stretches is not None and (named := row.get(columns.stretches)):
        if (
            not isinstance(named, list)
            or len(named) > _MOST_STRETCHES
            or not all(isinstance(i, int | str) for i in named)
        ):
            raise InputError(f"{path.name} line {line}: {columns.stretches} is not a list of block ids")
        stretches = tuple(named)
    isl = _tokens(row.get(columns.input), columns.input, path, line)
    return Arrival(
        arrival_s=seconds_of(row.get(columns.arrival), columns, path, line) - first,
        isl=isl,
        osl=_tokens(row.get(columns.output), columns.output, path, line),
        stretches=stretches,
        stretch_tokens=(columns.stretch_tokens or -(-isl // len(stretches))) if stretches else 0,
        session=_word(row, columns.session),
        tenant=_word(row, columns.tenant),
        priority=int(float(row[columns.priority])) if columns.priority and row.get(columns.priority) else 0,
        adapter=_word(row, columns.adapter),
    )


def _word(row: Mapping[str, Any], column: str | None) -> str | None:
    value = None if column is None else row.get(column)
    return None if value in (None, "") else str(value)[:200]


def seconds_of(value: Any, columns: TraceColumns, path: Path, line: int) -> float:
    """A time in seconds: a number in the file's unit, or a date with a time of day."""
    try:
        seconds = float(value) * columns.unit_s
    except (TypeError, ValueError):
        try:
            seconds = datetime.fromisoformat(str(value)[:40]).timestamp()
        except (ValueError, OverflowError):
            seconds = math.nan
    if not math.isfinite(seconds):
        raise InputError(
            f"{path.name} line {line}: {columns.arrival} {shorten(str(value))!r} is not a time; give seconds or a date and time"
        )
    if seconds < 0:
        raise InputError(
            f"{path.name} line {line}: {columns.arrival} {shorten(str(value))} is before the start; give times from 0"
        )
    return seconds


def _tokens(value: Any, column: str, path: Path, line: int) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 1 <= number <= _MOST_TOKENS or number != int(number):
        raise InputError(
            f"{path.name} line {line}: {column} {shorten(str(value))!r} is not a whole number of tokens from 1; drop the line"
        )
    return int(number)
