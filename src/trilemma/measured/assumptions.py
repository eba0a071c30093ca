"""``--assume COLUMN=VALUE``: what a table leaves out, said by whoever judges it, and noted at every row that it fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trilemma.errors import InputError, UnknownName, shorten
from trilemma.measured.judgement import Judgement
from trilemma.measured.tables import Row


def parse_assumptions(texts: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """Column → value of every ``COLUMN=VALUE``. Raises `InputError` for another shape, `UnknownName` for no column."""
    found: dict[str, str] = {}
    for text in texts:
        column, sign, value = (part.strip() for part in text.partition("="))
        if not sign or not value:
            raise InputError(f"--assume {shorten(text)!r} is not COLUMN=VALUE; give one such as isl=150")
        if column not in columns:
            raise UnknownName("column", column, columns, hint="in --assume")
        found[column] = value
    return found


def filled(rows: Sequence[Row], assumptions: Mapping[str, str]) -> list[Row]:
    """Rows with their empty cells filled; what a row states stays."""
    return [replace(row, cells={**assumptions, **row.cells}) for row in rows]


def noted(judgements: Sequence[Judgement], rows: Sequence[Row], assumptions: Mapping[str, str]) -> list[Judgement]:
    """``judgements`` of ``rows`` (as they were before `filled`) that say which of their cells were assumed."""
    return [
        replace(
            judgement,
            assumed=(
                *(f"{column} {value}: assumed" for column, value in assumptions.items() if not row.text(column)),
                *judgement.assumed,
            ),
        )
        for judgement, row in zip(judgements, rows, strict=True)
    ]
