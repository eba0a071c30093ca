"""The package's data files: every one is read whole, and what a command writes is read back alike."""

from __future__ import annotations

import json

import pytest

from trilemma.data.digest import DATA
from trilemma.data.files import read_data, table_text

FILES = sorted(path.relative_to(DATA).as_posix() for end in ("toml", "json") for path in DATA.rglob(f"*.{end}"))


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_read(name: str) -> None:
    assert read_data(name)


@pytest.mark.parametrize("name", ["coefficients/serving_terms.json", "coefficients/training_time.json"])
def test_files_that_commands_make_are_as_they_would_write_them(name: str) -> None:
    """Rows stand one a line in the order of the file: made again without a change, it does not change."""
    assert table_text(read_data(name)) == (DATA / name).read_text(encoding="utf-8")


def test_a_row_is_a_line() -> None:
    long = {f"row {number}": [number, 2.0] for number in range(60)}
    document = {"a": 1.50, "rows": long, "short": {"x": {"y": [1]}}, "list": [{"x": 1}, {"ü": True}], "empty": []}
    lines = table_text(document).splitlines()
    assert json.loads("\n".join(lines)) == document
    assert '  "row 7": [7, 2.0],' in lines
    assert ' "short": {"x": {"y": [1]}},' in lines
    assert '  {"ü": true}' in lines
