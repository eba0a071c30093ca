"""Files of rows from outside, read a line at a time: CSV or JSON lines, plain or gzip, of any size.

They are data: lines are bounded, and one that cannot be read is named with what to do.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from trilemma.errors import InputError, shorten
from trilemma.outside_files import BROKEN, reason, unpacked

#: Characters of a line.
_LONGEST_LINE = 2**20


@contextmanager
def open_text(path: Path, what: str) -> Iterator[TextIO]:
    """``path`` as text, plain or gzip. Raises `InputError` where it cannot be read as ``what`` it should be."""
    with ExitStack() as held:
        try:
            file = held.enter_context(unpacked(path))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the {what} {shorten(str(path))}: {reason(error)}") from None
        yield held.enter_context(io.TextIOWrapper(file, encoding="utf-8-sig"))


def read_rows(file: TextIO, path: Path, delimiter: str = ",") -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number of the line, what it states) of CSV with a header or JSON lines. Raises `InputError` that names a bad line."""
    lines = _lines(file, path)
    first = next(lines, None)
    if first is None:
        return
    if first[1].lstrip().startswith("{"):
        for line, text in itertools.chain([first], lines):
            yield line, _json(text, path, line)
        return
    header = _cells(first[1], path, first[0], delimiter)
    for line, text in lines:
        cells = _cells(text, path, line, delimiter)
        if len(cells) != len(header):
            raise InputError(f"{path.name} line {line}: {len(cells)} cells under {len(header)} columns; mend the line")
        yield line, dict(zip(header, cells, strict=True))


def _cells(text: str, path: Path, line: int, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=delimiter))
    except csv.Error as error:
        raise InputError(f"{path.name} line {line}: it is no row of a table ({error}); mend the line") from None


def _lines(file: TextIO, path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    number = 0
    while True:
        try:
            text = file.readline(_LONGEST_LINE + 1)
        except (UnicodeDecodeError, *BROKEN) as error:
            raise InputError(
                f"{path.name} line {number + 1}: it cannot be read as text ({shorten(str(error))})"
            ) from None
        if not text:
            return
        number += 1
        if len(text) > _LONGEST_LINE:
            raise InputError(f"{path.name} line {number}: it is longer than {_LONGEST_LINE:,} characters; cut it")
        if text.strip():
            yield number, text


def _json(text: str, path: Path, line: int) -> Mapping[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path.name} line {line}: {shorten(text)!r} is not JSON; one object a line") from None
    if not isinstance(row, dict):
        raise InputError(f"{path.name} line {line}: {shorten(text)!r} is not an object; one object a line")
    return row
