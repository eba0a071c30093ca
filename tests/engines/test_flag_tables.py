"""Flags made one by one are those of the whole file."""

from __future__ import annotations

import json

import pytest

from trilemma.commands.flags import read_table
from trilemma.data.digest import DATA

FILES = sorted(path.name for path in (DATA / "engines").glob("*_flags.json"))


def test_there_are_tables() -> None:
    assert len(FILES) >= 5


@pytest.mark.parametrize("file", FILES)
def test_rows_are_the_whole_file(file: str) -> None:
    whole = json.loads((DATA / "engines" / file).read_text(encoding="utf-8"))["flags"]
    table = read_table(file, "vLLM")
    assert list(table.flags) == list(whole)
    assert len(table.flags) == len(whole)
    for name, row in whole.items():
        flag = table.flags[name]
        assert (flag.name, flag.kind, flag.field) == (name, row["kind"], row["field"])
        assert list(flag.short) == row.get("short", [])
        assert flag.default == row.get("default")
        assert (flag.least, flag.most) == (row.get("least"), row.get("most"))
    assert set(table.shorts) == {short for row in whole.values() for short in row.get("short", ())}
    assert set(table.negatives) == {word for row in whole.values() for word in row.get("negative", ())}
    assert "no-such-flag" not in table.flags
    assert table.flags.get("no-such-flag") is None
