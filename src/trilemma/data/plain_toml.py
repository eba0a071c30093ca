"""The TOML of this package's own data files, read fast.

``tomllib`` takes 0.5 ms for a kilobyte, which a command that answers in 0.3 s cannot spend on tables of numbers. Lines of the
shape ``key = value`` whose value JSON reads alike go through its reader; every other line, and a file with anything unusual,
goes to ``tomllib``. Files of users are for ``tomllib`` alone: this reader trusts what it reads.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from trilemma.data.digest import DATA

_PAIR = re.compile(r'(?:"([^"\\]+)"|([\w-]+))[ \t]*=[ \t]*(.+)', re.ASCII)
_INLINE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([\w-]+)[ \t]*=', re.ASCII)
_TABLE = re.compile(r"\[([\w.-]+)\]", re.ASCII)
_ENTRY = re.compile(r"\[\[([\w-]+)\]\]", re.ASCII)


def read_data(name: str) -> dict[str, Any]:
    """The data file ``name``, a path below ``data/``."""
    return loads((DATA / name).read_text(encoding="utf-8"))


def read_table(name: str, table: str) -> dict[str, Any]:
    """The table ``table`` of a data file with the tables inside it, the rest unread; empty where the file has none."""
    text = (DATA / name).read_text(encoding="utf-8")
    parts = ("[" + part for part in text.split("\n["))
    found = [part for part in parts if part.startswith((f"[{table}]", f"[{table}."))]
    content: dict[str, Any] = loads("\n".join(found)).get(table, {})
    return content


def loads(text: str) -> dict[str, Any]:
    """As ``tomllib.loads``, for text that is valid TOML."""
    try:
        return _by_lines(text)
    except ValueError:
        return tomllib.loads(text)


def _by_lines(text: str) -> dict[str, Any]:
    root: dict[str, Any] = {}
    table = root
    lines = iter(text.split("\n"))
    for line in lines:
        if not line or line[0] == "#":
            continue
        if line[0] == "[":
            table = _opened(root, line)
            continue
        pair = _PAIR.fullmatch(line)
        if pair is None:
            raise ValueError(line)
        if pair[3] == "[":
            table[pair[1] or pair[2]] = _list(lines)
            continue
        try:
            table[pair[1] or pair[2]] = json.loads(_INLINE_KEY.sub(_quoted, pair[3]) if "{" in pair[3] else pair[3])
        except ValueError:
            table.update(tomllib.loads(line))
    return root


def _list(lines: Iterator[str]) -> Any:
    """A list of one entry or more a line, up to the bracket that closes it. Raises `ValueError` for another shape."""
    inner = " ".join(itertools.takewhile(lambda line: line != "]", lines)).rstrip().removesuffix(",")
    return json.loads(f"[{_INLINE_KEY.sub(_quoted, inner)}]")


def _quoted(match: re.Match[str]) -> str:
    """The key of an inline table as JSON writes it; a string stays."""
    return f'"{match[1]}":' if match[1] else match[0]


def _opened(root: dict[str, Any], line: str) -> dict[str, Any]:
    """The table that a header opens. Raises `ValueError` for headers of another shape."""
    if (entry := _ENTRY.fullmatch(line)) is not None:
        rows = root.setdefault(entry[1], [])
        rows.append({})
        opened: dict[str, Any] = rows[-1]
        return opened
    header = _TABLE.fullmatch(line)
    if header is None:
        raise ValueError(line)
    opened = root
    for part in header[1].split("."):
        opened = opened.setdefault(part, {})
        if not isinstance(opened, dict):
            raise ValueError(line)
    return opened
