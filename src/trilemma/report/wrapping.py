"""Sentences over several lines: flags, ids and numbers stay whole, so that they can be copied."""

from __future__ import annotations

import re
import textwrap

from trilemma.report.tables import display_width

#: What a line starts with: blanks, and a label with the blanks behind it.
_LABEL = re.compile(r" *(?:\S{1,24} {2,})?(?:\d{1,3}\. |- )?")
_COMMAND = re.compile(r" +.* --?[a-z]")
#: Longer lines of prose are hard to read, however wide the window.
READABLE = 100


def wrapped(text: str, width: int, *, initial_indent: str = "", subsequent_indent: str = "") -> list[str]:
    """``text`` in lines of at most ``width`` columns, and no longer than reads well; a word longer than
    that keeps a line to itself."""
    return textwrap.wrap(
        text, min(width, READABLE), initial_indent=initial_indent, subsequent_indent=subsequent_indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def within(text: str, width: int) -> str:
    """``text`` without a line wider than ``width``, where that can be: a longer one goes on below its own text.

    Commands, indented lines with flags, stay on one line, since they are there to be copied; so does what has no blank.
    """
    lines = []
    for line in text.split("\n"):
        found = None if display_width(line) <= width else _LABEL.match(line)
        if found is None or _COMMAND.match(line):
            lines.append(line)
        else:
            label, rest = found[0], line[found.end() :]
            lines += textwrap.wrap(
                rest, width, initial_indent=label, subsequent_indent=" " * min(len(label) or 2, width // 2),
                break_on_hyphens=False, break_long_words=False, drop_whitespace=True,
            )  # fmt: skip
    return "\n".join(lines)
