"""The fast reader of the package's own files reads what the strict one reads."""

from __future__ import annotations

import datetime
import tomllib
from typing import Any

import pytest

from trilemma.data.digest import DATA
from trilemma.data.plain_toml import loads, read_data

FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.toml"))


def same(one: Any, other: Any) -> bool:
    """Equal in values, types and order of keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", FILES)
def test_every_file_reads_alike(name: str) -> None:
    assert same(read_data(name), tomllib.loads((DATA / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# a comment\na = 1\n\n[b.c]\nd = [1, 2.5, true]\n[[e]]\nf = 'x'\n[[e]]\nf = \"y\\u00e4\"\n",
        "a = 2026-11-29\nb = 1_000\nc = 0x10\nd = inf\n",
        'a = [\n  { b = 1, c = "d = 2, { e = 3" },\n  { b = -1e-3 },\n]\n',
        "a = [\n  1, # one\n  2,\n]\n",
        'a = { b = { c = [1, 2] }, "d e" = false }\n',
        "a.b = 1\na.c = 2\n",
        "a = 1 # why\n",
        'a = """\ntwo\nlines"""\n',
        "  a = 1\n",
    ],
)
def test_text_of_any_shape_reads_alike(text: str) -> None:
    assert same(loads(text), tomllib.loads(text))


def test_dates_are_dates() -> None:
    assert loads("as_of = 2026-11-29") == {"as_of": datetime.date(2026, 11, 29)}
