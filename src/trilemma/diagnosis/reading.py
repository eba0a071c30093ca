"""One file read: its form is decided by its first bytes, its kind by the records in it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

from trilemma.diagnosis.findings import Part, Reading
from trilemma.diagnosis.readers import Gatherer, Reader, readers
from trilemma.diagnosis.sources import HEAD, Source, Unreadable, opened
from trilemma.diagnosis.trees import Item, json_items, pickle_items

_LARGEST_XML = 32 << 20
_LARGEST_VALUE = 256
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")


def read(name: str) -> Reading:
    """What stands in a file. Never raises for what is in it: an unreadable file is a reading that says why."""
    try:
        with opened(name) as source:
            return _read(source)
    except Unreadable as error:
        return Reading(file=name, kind="unreadable", why=str(error))


def read_bytes(name: str, content: bytes) -> Reading:
    """What stands in ``content``, which a tool printed; ``name`` is what it is told by."""
    try:
        return _read(Source(name, BytesIO(content)))
    except Unreadable as error:
        return Reading(file=name, kind="unreadable", why=str(error))


def _read(source: Source) -> Reading:
    head = source.head
    if not head:
        return _empty(source)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return _of_items(source, pickle_items(source))
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if re.match(rb"\{\s*[\"}]|\[\s*[\[{]", start):
        return _of_items(source, json_items(source))
    if start[:5] in (b"<?xml", b"<!DOC") or re.match(rb"<(system|graphs|nvidia_smi_log)\b", start):
        return _of_xml(source)
    if len(head) <= _LARGEST_VALUE and (part := _value(source)) is not None:
        return _reading(source, (part,), part.kind, {}, None)
    if b"\0" in head and head[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        raise Unreadable("binary data of no known kind")
    return _of_lines(source)


def _empty(source: Source) -> Reading:
    if source.broken:
        raise Unreadable(source.broken)
    return Reading(file=source.name, kind="empty")


def _value(source: Source) -> Part | None:
    """A file of one short text, such as the kernel shows counters as."""
    text = source.head.strip()
    if not text or b"\n" in text or not text.isascii():
        return None
    gatherers = [reader.begin() for reader in readers("value")]
    for one in gatherers:
        one.take(text.decode("ascii"), source.name)
    return next(iter(_parts(gatherers)), None)


def _of_items(source: Source, items: Iterator[Item]) -> Reading:
    gatherers = [reader.begin() for reader in readers("items")]
    keys: dict[str, None] = {}
    why = None
    try:
        for key, item in items:
            if len(keys) < 40:
                keys[key] = None
            for one in gatherers:
                one.take(item, key)
    except Unreadable as error:
        why = str(error)
    parts = _parts(gatherers)
    if not parts and why:
        raise Unreadable(why)
    return _reading(source, parts, "json", {"keys": [key for key in keys if key][:40]}, why)


def _of_xml(source: Source) -> Reading:
    whole = source.all(_LARGEST_XML)
    if b"<!ENTITY" in whole:
        raise Unreadable("XML that declares entities")
    try:
        root = ElementTree.fromstring(whole)
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError, MemoryError) as error:
        raise Unreadable(f"damaged XML: {error}") from None
    gatherers = [reader.begin() for reader in readers("xml")]
    for one in gatherers:
        one.take(root, root.tag)
    return _reading(source, _parts(gatherers), "xml", {"root": root.tag[:80]}, None)


def _of_lines(source: Source) -> Reading:
    lines = _Lines()
    number = 0
    for number, line in enumerate(source.lines(), start=1):
        takers = lines.takers(line)
        if takers:
            text = line.decode("utf-8", errors="replace").rstrip("\r")
            if "\x1b" in text:
                text = _COLOUR.sub("", text)
            for one in takers:
                one.take(text, number)
    columns = _columns(source.head)
    plain: dict[str, object] = (
        {"lines": number} if columns is None else {"columns": columns, "rows": max(number - 1, 0)}
    )
    return _reading(source, _parts(lines.gatherers), "text" if columns is None else "table", plain, source.broken)


def _columns(head: bytes) -> list[str] | None:
    """Names of the first line where the lines after it have as many cells, quoted ones whole."""
    rows = head.decode("utf-8", errors="replace").splitlines()[:4]
    if len(rows) < 2 or rows[0].count(",") < 1:
        return None
    try:
        cells = list(csv.reader(rows[:-1] if len(head) == HEAD else rows))
    except csv.Error:
        return None
    if len({len(row) for row in cells}) != 1 or len(cells) < 2 or any(len(name) > 60 for name in cells[0]):
        return None
    return cells[0][:200]


class _Lines:
    """Hands each line to the gatherers whose marks it holds."""

    def __init__(self) -> None:
        self._pattern, wanted, self._own = _marks()
        begun = {id(reader): reader.begin() for reader in readers("lines")}
        self.gatherers: list[Gatherer] = list(begun.values())
        self._by_mark = {mark: [begun[id(reader)] for reader in those] for mark, those in wanted.items()}
        self._greedy: list[Any] = [one for one in self.gatherers if hasattr(one, "greedy")]
        self._before: bytes | None = None

    def takers(self, line: bytes) -> list[Gatherer]:
        if self._before is not None and self._before in line:  # floods of one message
            return self._by_mark[self._before]
        found = self._pattern.search(line)
        if found is None:
            return [one for one in self._greedy if one.greedy]
        marks = {found[0], *self._pattern.findall(line, found.end())}
        own = next((mark for mark in marks if mark in self._own), None)
        self._before = own
        if own is not None:
            return self._by_mark[own]
        takers = [one for mark in marks for one in self._by_mark[mark]] if len(marks) > 1 else self._by_mark[found[0]]
        takers = takers + [one for one in self._greedy if one.greedy]
        return list({id(one): one for one in takers}.values()) if len(takers) > 1 else takers


@cache
def _marks() -> tuple[re.Pattern[bytes], dict[bytes, list[Reader]], frozenset[bytes]]:
    """One pattern of all marks, who wants each, and the marks whose lines concern one reader alone."""
    wanted: dict[bytes, list[Reader]] = {}
    for reader in readers("lines"):
        for mark in dict.fromkeys((*reader.own, *reader.marks)):
            wanted.setdefault(mark.encode(), []).append(reader)
    for long, those in wanted.items():  # the longer of two is what the pattern finds
        inside = [one for other in wanted if other != long and other in long for one in wanted[other]]
        those += [one for one in inside if one not in those]
    own = frozenset(mark.encode() for reader in readers("lines") for mark in reader.own)
    return re.compile(_any_of(sorted(wanted))), wanted, own


def _any_of(words: list[bytes]) -> bytes:
    """A pattern of the words as a tree by their first bytes, the longest first: one branch a byte instead of one a word."""
    if len(words) == 1:
        return re.escape(words[0])
    branches: dict[bytes, list[bytes]] = {}
    for word in words:
        branches.setdefault(word[:1], []).append(word[1:])
    ends = b"" in branches
    branches.pop(b"", None)
    inside = b"|".join(re.escape(first) + _any_of(rest) for first, rest in branches.items())
    return b"(?:" + inside + b")" + (b"?" if ends else b"")


def _parts(gatherers: list[Gatherer]) -> tuple[Part, ...]:
    found = [part for one in gatherers if (part := one.part()) is not None]
    return tuple(sorted(found, key=lambda part: -part.weight))


def _reading(
    source: Source, parts: tuple[Part, ...], otherwise: str, plain: dict[str, object], why: str | None
) -> Reading:
    facts: dict[str, object] = dict(plain) if not parts else {}
    for part in parts:
        facts |= {key: value for key, value in part.facts.items() if key not in facts}
    why = why or source.broken
    if why:
        facts["incomplete"] = why
    return Reading(file=source.name, kind=parts[0].kind if parts else otherwise, parts=parts, facts=facts, why=why)
