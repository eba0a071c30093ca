"""Aligned plain-text tables."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator, Sequence

from trilemma.errors import TrilemmaError

_GAP = "  "
#: A column of words is never cut below this many cells.
_LEAST = 6
#: Cells below which a column of words is not squeezed while others can be left out.
_EASY = 16


def render_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    align: str = "",
    width: int | None = None,
    whole: Sequence[str] = (),
    yields: Sequence[str] = (),
) -> str:
    """``headers`` over ``rows``, columns aligned, no trailing blanks, no final newline.

    ``align`` holds one letter per column, ``l`` or ``r``; columns beyond it are right-aligned when every filled cell looks
    like a number and left-aligned otherwise. Where the table is wider than ``width`` cells, the words of left-aligned columns
    and of headers go over several lines; where that is not enough the columns named in ``yields`` are left out, the first
    first, and a line below names them; and what is still too wide becomes a block of lines for each row. Numbers and the
    cells of the columns ``whole``, which are there to be copied, are never broken; other words are cut where they alone are
    wider than their share. Line breaks and control characters in cells become blanks.
    """
    grid, sides = _grid(headers, rows, align)
    fixed = [side == "r" or header in whole for side, header in zip(sides, headers, strict=True)]
    shown = list(range(len(headers)))
    left_out: list[str] = []
    giving = [name for name in yields if name in headers]
    while (widths := _widths(grid, shown, fixed, width, cut=not giving)) is None and giving:
        left_out.append(giving.pop(0))
        shown = [at for at in shown if headers[at] != left_out[-1]]
    if widths is None:
        return "\n".join(_blocks(grid, width or 0))
    lines = list(_lines([grid[0][at] for at in shown], widths, [sides[at] for at in shown], bottom=True))
    lines.append(_GAP.join("─" * one for one in widths))
    for row in grid[1:]:
        lines += _lines([row[at] for at in shown], widths, [sides[at] for at in shown])
    if left_out:
        words = f"left out at {width} columns: {', '.join(reversed(left_out))}"
        lines += textwrap.wrap(words, width or 0, break_on_hyphens=False)
    return "\n".join(lines)


def _grid(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> tuple[list[list[str]], list[str]]:
    """The cells, headers first, each on one line, and the side of each column."""
    columns = len(headers)
    if any(len(row) != columns for row in rows):
        raise TrilemmaError(f"a table row does not have the {columns} cells of its header")
    grid = [[one_line(cell) for cell in row] for row in (headers, *rows)]
    sides = [align[at] if at < len(align) else _side([row[at] for row in grid[1:]]) for at in range(columns)]
    if set(sides) - {"l", "r"}:
        raise TrilemmaError(f"alignment {align!r} holds letters other than l and r")
    return grid, sides


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


def one_line(cell: str) -> str:
    """``cell`` with blanks for signs that move what stands around them: breaks, escapes, turns of direction."""
    return "".join(sign if sign.isprintable() else " " for sign in cell)


def _side(cells: Sequence[str]) -> str:
    filled = [cell for cell in cells if cell.strip() not in ("", "-", "–", "—")]
    numeric = all(cell.strip().lstrip("+-−≈~<>≤≥$").replace(",", "")[:1].isdigit() for cell in filled)
    return "r" if filled and numeric else "l"


def _widths(
    grid: Sequence[Sequence[str]], shown: Sequence[int], fixed: Sequence[bool], width: int | None, *, cut: bool
) -> list[int] | None:
    """Widths of the columns ``shown`` in ``width`` cells; None where they do not fit.

    Words keep room enough to be read; ``cut``: where nothing else can give way they are squeezed, and then cut.
    """
    full = [max(display_width(row[at]) for row in grid) for at in shown]
    room = None if width is None else width - len(_GAP) * (len(shown) - 1)
    if room is None or sum(full) <= room:
        return full
    least = []
    for at in shown:
        words = max(map(display_width, grid[0][at].split()), default=0)
        cells = max((_needed(row[at], whole=fixed[at]) for row in grid[1:]), default=0)
        least.append(max(words, cells))
    easy = [max(few, min(one, _EASY)) for few, one in zip(least, full, strict=True)]
    found = _shrunk(full, easy, room)
    if found is None and cut:
        found = _shrunk(easy, least, room)
    if found is None and cut:
        free = [one if fixed[at] else min(one, _LEAST) for at, one in zip(shown, least, strict=True)]
        found = _shrunk([max(one, few) for one, few in zip(least, free, strict=True)], free, room)
    return found


def _needed(cell: str, *, whole: bool) -> int:
    return display_width(cell) if whole else max(map(display_width, cell.split()), default=0)


def _shrunk(full: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """``full`` with the widest columns made narrower until all fit ``room``; None where they cannot."""
    if sum(least) > room:
        return None
    widths = list(full)
    while sum(widths) > room:
        movable = [at for at, few in enumerate(least) if widths[at] > few]
        widths[max(movable, key=widths.__getitem__)] -= 1
    return widths


def _lines(cells: Sequence[str], widths: Sequence[int], sides: Sequence[str], *, bottom: bool = False) -> Iterator[str]:
    """A row over as many lines as its longest cell takes."""
    broken = [_broken(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, broken), default=1)
    for cell in broken:
        cell[:0] = [""] * (height - len(cell) if bottom else 0)
        cell += [""] * (height - len(cell))
    for line in range(height):
        row = zip(broken, widths, sides, strict=True)
        yield _GAP.join(_fill(cell[line], width, side) for cell, width, side in row).rstrip()


def _broken(cell: str, width: int) -> list[str]:
    """``cell`` in lines of at most ``width`` cells, broken at blanks; words that alone are wider are cut."""
    if display_width(cell) <= width:
        return [cell]
    lines = [""]
    for word in cell.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if display_width(joined) <= width:
            lines[-1] = joined
        else:
            lines += [truncate(word, width)] if lines[-1] else []
            lines[-1] = truncate(word, width)
    return lines


def _blocks(grid: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Each row as lines of ``header: cell``, what is longer than ``width`` over several."""
    headers = [cell.strip() for cell in grid[0]]
    for number, row in enumerate(grid[1:]):
        if number:
            yield ""
        for header, cell in zip(headers, row, strict=True):
            if cell.strip():
                words = f"{header}: {cell.strip()}" if header else cell.strip()
                yield from textwrap.wrap(
                    words, max(width, 1), subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
                )


def _fill(cell: str, width: int, side: str) -> str:
    blanks = " " * (width - display_width(cell))
    return blanks + cell if side == "r" else cell + blanks
