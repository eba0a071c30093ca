"""``--where``: the part of a table that is judged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trilemma.errors import InputError, UnknownName, shorten
from trilemma.foreign_words import unwarned
from trilemma.measured.tables import Row

MOST_PATTERN = 200
#: A repeat of a group that itself repeats or branches backtracks without end on some cells.
_EXPLOSIVE = re.compile(r"\)[*+{]")
_MOST_SEARCHED = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """``column=value`` (equal as text or as numbers, "" for empty cells) or ``column~pattern`` (found anywhere in the cell)."""

    column: str
    value: str
    pattern: re.Pattern[str] | None = None

    def holds(self, row: Row) -> bool:
        cell = row.text(self.column)
        if self.pattern is not None:
            return self.pattern.search(cell[:_MOST_SEARCHED]) is not None
        return cell == self.value or _as_number(cell) == _as_number(self.value) is not None


def parse_condition(text: str, columns: Sequence[str]) -> Condition:
    """``COLUMN=VALUE`` or ``COLUMN~REGEX``. Raises `InputError` for unknown columns and for patterns that are not safe."""
    match = re.match(r"([^=~]*)([=~])(.*)", text, flags=re.DOTALL)
    if match is None:
        raise InputError(f"--where {shorten(text)!r} is neither COLUMN=VALUE nor COLUMN~REGEX")
    column, sign, value = match.group(1).strip(), match.group(2), match.group(3).strip()
    if column not in columns:
        raise UnknownName("column", column, columns, hint="in --where")
    if sign == "=":
        return Condition(column=column, value=value)
    if len(value) > MOST_PATTERN:
        raise InputError(f"--where {shorten(text, most=40)!r}: the pattern is longer than {MOST_PATTERN} characters")
    if _EXPLOSIVE.search(value):
        raise InputError(
            f"--where {shorten(text)!r}: repeated groups are not accepted; repeat single characters or classes"
        )
    try:
        with unwarned():
            return Condition(column=column, value=value, pattern=re.compile(value))
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"--where {shorten(text)!r} is not a regular expression: {error}") from None


def select(rows: Sequence[Row], conditions: Sequence[Condition]) -> list[Row]:
    """Rows that meet every condition."""
    return [row for row in rows if all(condition.holds(row) for condition in conditions)]


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
