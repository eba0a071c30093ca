"""Aligned plain-text tables."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from trilemma.errors import TrilemmaError

_GAP = "  "
#: A column is never cut below this many cells before others are cut too.
_LEAST = 6


def render_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, align: str = "", width: int | None = None
) -> str:
    """``headers`` over ``rows``, columns aligned, no trailing blanks, no final newline.

    ``align`` holds one letter per column, ``l`` or ``r``; columns beyond it are right-aligned when every filled cell looks
    like a number and left-aligned otherwise. Where the table is wider than ``width`` cells the widest left-aligned columns
    are cut with an ellipsis: a cut number would be a wrong number, so right-aligned columns keep theirs. Line breaks and
    control characters in cells become blanks.
    """
    columns = len(headers)
    if any(len(row) != columns for row in rows):
        raise TrilemmaError(f"a table row does not have the {columns} cells of its header")
    grid = [[_one_line(cell) for cell in row] for row in (headers, *rows)]
    sides = [align[at] if at < len(align) else _side([row[at] for row in grid[1:]]) for at in range(columns)]
    if set(sides) - {"l", "r"}:
        raise TrilemmaError(f"alignment {align!r} holds letters other than l and r")
    widths = [max(display_width(row[at]) for row in grid) for at in range(columns)]
    if width is not None:
        widths = _shrink(widths, sides, width - len(_GAP) * (columns - 1))
    lines = [_GAP.join(_fill(row[at], widths[at], sides[at]) for at in range(columns)).rstrip() for row in grid]
    rule = _GAP.join("─" * one for one in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def display_width(text: str) -> int:
    """Terminal cells that ``text`` takes: wide East Asian characters count two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )


def truncate(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, its end replaced by an ellipsis where it is longer."""
    if display_width(text) <= width:
        return text
    kept, used = [], 1
    for sign in text:
        used += display_width(sign)
        if used > width:
            break
        kept.append(sign)
    return "".join(kept).rstrip() + "…" if width > 0 else ""


def _one_line(cell: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in cell)


def _side(cells: Sequence[str]) -> str:
    filled = [cell for cell in cells if cell.strip() not in ("", "-", "–", "—")]
    numeric = all(cell.strip().lstrip("+-−≈~<>≤≥$").replace(",", "")[:1].isdigit() for cell in filled)
    return "r" if filled and numeric else "l"


def _shrink(widths: list[int], sides: Sequence[str], room: int) -> list[int]:
    """Column widths that fit ``room`` cells, as far as the left-aligned columns can give way."""
    widths = list(widths)
    while sum(widths) > room:
        movable = [at for at, side in enumerate(sides) if side == "l" and widths[at] > _LEAST]
        if not movable:
            break
        widths[max(movable, key=widths.__getitem__)] -= 1
    return widths


def _fill(cell: str, width: int, side: str) -> str:
    cell = truncate(cell, width)
    blanks = " " * (width - display_width(cell))
    return blanks + cell if side == "r" else cell + blanks
