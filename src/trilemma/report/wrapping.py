"""Sentences over several lines: flags, ids and numbers stay whole, so that they can be copied."""

from __future__ import annotations

import textwrap


def wrapped(text: str, width: int, *, initial_indent: str = "", subsequent_indent: str = "") -> list[str]:
    """``text`` in lines of at most ``width`` columns; a word longer than that keeps a line to itself."""
    return textwrap.wrap(
        text, width, initial_indent=initial_indent, subsequent_indent=subsequent_indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
