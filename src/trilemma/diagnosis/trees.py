"""JSON and pickles as a stream of items: what stands under the keys of the top, arrays element by element.

A trace of a gigabyte is never held whole: one item is decoded at a time, and none may be larger than 16 MiB.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

from trilemma.diagnosis.pickles import plain_pickle
from trilemma.diagnosis.sources import Source, Unreadable
from trilemma.errors import shorten

Item = tuple[str, Any]
_LARGEST_ITEM = 16 << 20
_LARGEST_PICKLE = 64 << 20
_SPACE = " \t\r\n"


def json_items(source: Source) -> Iterator[Item]:
    """(key, value) of the top; of an array every element under its key; of an array at the top under the key "". Documents may
    follow one another (JSON lines)."""
    text = _Text(source)
    opening = text.peek()
    if opening == "[":
        yield from _elements(text, "")
        return
    if opening != "{":
        raise Unreadable("not a JSON object or array")
    while text.peek() == "{":  # one document, or one a line
        yield from _members(text)
        text.skip()


def _members(text: _Text) -> Iterator[Item]:
    text.skip()
    while (mark := text.peek()) not in ("}", ""):
        if mark == ",":
            text.skip()
            continue
        key = text.value()
        if not isinstance(key, str) or text.peek() != ":":
            raise Unreadable("damaged JSON: a key is missing")
        text.skip()
        if text.peek() == "[":
            yield from _elements(text, key)
        elif text.peek() == "":
            return
        else:
            yield key, text.value()


def _elements(text: _Text, key: str) -> Iterator[Item]:
    text.skip()
    while (mark := text.peek()) not in ("]", ""):
        if mark == ",":
            text.skip()
        else:
            yield key, text.value()
    text.skip()


class _Text:
    """A window on the text, moved on as values are taken."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self._buffer, self._at, self._ended = "", 0, False

    def _more(self) -> bool:
        if self._ended:
            return False
        chunk = self._source.read()
        self._ended = not chunk
        self._buffer = self._buffer[self._at :] + self._decode(chunk, final=not chunk)
        self._at = 0
        return True

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            buffer, at = self._buffer, self._at
            while at < len(buffer) and buffer[at] in _SPACE:
                at += 1
            self._at = at
            if at < len(buffer):
                return buffer[at]
            if not self._more():
                return ""

    def skip(self) -> None:
        self._at += 1

    def value(self) -> Any:
        """The value that starts here; a text that ends within it is an end, told by ``broken``."""
        while True:
            try:
                value, end = self._scan(self._buffer, self._at)
            except json.JSONDecodeError as error:
                if len(self._buffer) - self._at > _LARGEST_ITEM:
                    raise Unreadable(f"damaged JSON, or one value of more than {_LARGEST_ITEM >> 20} MiB") from None
                if not self._more():
                    self._source.broken = self._source.broken or f"the JSON breaks off: {shorten(error.msg)}"
                    raise Unreadable(self._source.broken) from None
                continue
            except (RecursionError, ValueError, MemoryError):
                raise Unreadable("JSON nested too deeply, or a number too long") from None
            if end == len(self._buffer) and not self._ended and not isinstance(value, dict | list | str):
                self._more()  # a number may go on
                continue
            self._at = end
            return value


def pickle_items(source: Source) -> Iterator[Item]:
    """As `json_items`, of a pickle that holds plain values; nothing in it is called."""
    yield from _top_items(plain_pickle(source.all(_LARGEST_PICKLE)))


def _top_items(top: Any) -> Iterator[Item]:
    if isinstance(top, list):
        yield from (("", item) for item in top)
        return
    if not isinstance(top, dict):
        raise Unreadable(f"a pickle of one {type(top).__name__}, no record")
    for key, value in top.items():
        if isinstance(value, list):
            yield from ((str(key), item) for item in value)
        else:
            yield str(key), value
