"""One file read: its form is decided by its first bytes, its kind by the records in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any
from xml.etree import ElementTree

from trilemma.diagnosis.findings import Part, Reading
from trilemma.diagnosis.readers import Gatherer, Reader, readers
from trilemma.diagnosis.sources import Source, Unreadable, opened
from trilemma.diagnosis.trees import Item, json_items, pickle_items

_LARGEST_XML = 32 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")


def read(name: str) -> Reading:
    """What stands in a file. Never raises for what is in it: an unreadable file is a reading that says why."""
    try:
        with opened(name) as source:
            return _read(source)
    except Unreadable as error:
        return Reading(file=name, kind="unreadable", why=str(error))


def _read(source: Source) -> Reading:
    head = source.head
    if not head:
        return _empty(source)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return _of_items(source, pickle_items(source))
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] == b"{" or re.match(rb"\[\s*[\[{]", start):
        return _of_items(source, json_items(source))
    if start[:5] in (b"<?xml", b"<!DOC") or re.match(rb"<(system|graphs|nvidia_smi_log)\b", start):
        return _of_xml(source)
    if b"\0" in head and head[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        raise Unreadable("binary data of no known kind")
    return _of_lines(source)


def _empty(source: Source) -> Reading:
    if source.broken:
        raise Unreadable(source.broken)
    return Reading(file=source.name, kind="empty")


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
    pattern, wanted = _marks()
    gatherers = [(reader, reader.begin()) for reader in readers("lines")]
    by_mark = {mark: [one for reader, one in gatherers if reader in those] for mark, those in wanted.items()}
    greedy: list[Any] = [one for _, one in gatherers if hasattr(one, "greedy")]
    number = 0
    for number, line in enumerate(source.lines(), start=1):
        found = pattern.search(line)
        if found is None:
            takers = [one for one in greedy if one.greedy]
            if not takers:
                continue
        else:
            takers = by_mark[found[0]]
            others = set(pattern.findall(line, found.end()))
            if others:
                takers = list({id(one): one for mark in (found[0], *others) for one in by_mark[mark]}.values())
            takers = takers + [one for one in greedy if one.greedy and one not in takers]
        text = line.decode("utf-8", errors="replace").rstrip("\r")
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        for one in takers:
            one.take(text, number)
    return _reading(source, _parts([one for _, one in gatherers]), "text", {"lines": number}, source.broken)


@cache
def _marks() -> tuple[re.Pattern[bytes], dict[bytes, list[Reader]]]:
    """One pattern of all marks, the longer before those that they begin with, and who wants each."""
    wanted: dict[bytes, list[Reader]] = {}
    for reader in readers("lines"):
        for mark in reader.marks:
            wanted.setdefault(mark.encode(), []).append(reader)
    return re.compile(b"|".join(re.escape(mark) for mark in sorted(wanted, key=len, reverse=True))), wanted


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
