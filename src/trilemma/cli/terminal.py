"""What is printed arrives: on terminals without some of our signs, and without the control characters of foreign names."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO, cast

from trilemma.foreign_words import shown

#: What stands for a sign that an encoding lacks (code pages of Windows, ASCII).
_PLAIN = {
    "−": "-", "–": "-", "—": "-", "…": "...", "≤": "<=", "≥": ">=", "≈": "~", "×": "x", "·": "-", "→": "->", "←": "<-", "±": "+-",
    "µ": "u", "°": " deg", "²": "2", "³": "3", "“": '"', "”": '"', "‘": "'", "’": "'", "•": "*", "█": "#", "▌": "#", "░": ".",
    "│": "|", "─": "-",
    "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+", "┬": "+", "┴": "+", "┼": "+", "●": "o", "∞": "inf",
    "▕": "|", "▏": "|", "▎": ":", "▍": ":", "▋": "#", "▊": "#", "▉": "#",
    "▁": "_", "▂": "_", "▃": "_", "▄": "-", "▅": "-", "▆": "^", "▇": "^",
}  # fmt: skip
_HANDLER = "trilemma-plain"


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(_HANDLER, _plain)


class _Printed:
    """A text stream that writes what ``stream`` can hold; everything else is ``stream``'s own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        text = shown(text, keeping="\n\t")
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return self._stream.write(text.encode(encoding, _HANDLER).decode(encoding))

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextlib.contextmanager
def readable_output() -> Iterator[None]:
    """Standard output and error, for the time being, as streams that print every answer."""
    out, err = sys.stdout, sys.stderr
    if out is None or err is None:  # closed by whoever started the program
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
        out, err = out or nowhere, err or nowhere
    sys.stdout, sys.stderr = cast(TextIO, _Printed(out)), cast(TextIO, _Printed(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
