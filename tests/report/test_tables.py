"""The plain-text table renderer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilemma.errors import TrilemmaError
from trilemma.report.tables import display_width, render_table, truncate


def test_columns_align_and_numbers_stand_right():
    text = render_table(["line", "GiB"], [["weights", "15.00"], ["kv_cache", "1,061.66"]], align="lr")
    assert text.splitlines() == [
        "line           GiB",
        "────────  ────────",
        "weights      15.00",
        "kv_cache  1,061.66",
    ]


def test_sides_are_guessed_from_the_cells():
    lines = render_table(["name", "n", "note"], [["a", "1", "–"], ["b", "12", "x"]]).splitlines()
    assert lines[2] == "a      1  –"
    assert lines[3] == "b     12  x"


def test_words_go_over_several_lines_and_numbers_never():
    text = render_table(["name", "bytes"], [["a very long name indeed", "123456789"]], align="lr", width=22)
    assert text.splitlines() == [
        "name             bytes",
        "───────────  ─────────",
        "a very long  123456789",
        "name indeed",
    ]
    cut = render_table(["name", "bytes"], [["unbreakable" * 3, "123456789"]], align="lr", width=22)
    assert cut.splitlines()[2] == "unbreakabl…  123456789"


def test_columns_give_way_in_their_order_and_are_named():
    headers = ["id", "what", "much", "more"]
    rows = [["a-long-id-to-copy", "words", "1234567", "7654321"]]
    asked = {"align": "llrr", "whole": ("id",), "yields": ("more", "much")}
    assert "left out" not in render_table(headers, rows, width=42, **asked)
    narrower = render_table(headers, rows, width=41, **asked).splitlines()
    assert narrower[0] == "id                 what      much"
    assert narrower[-1] == "left out at 41 columns: more"
    least = render_table(headers, rows, width=24, **asked).splitlines()
    assert least[0] == "id                 what"
    assert least[-2:] == ["left out at 24 columns:", "much, more"]
    blocks = render_table(headers, rows, width=20, **asked)
    assert blocks.splitlines() == ["id:", "  a-long-id-to-copy", "what: words", "much: 1234567", "more: 7654321"]


def test_hostile_cells_stay_on_one_line():
    text = render_table(["a"], [["x\ny\x1b[31m"]])
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text


def test_no_rows_gives_the_header_alone():
    assert render_table(["a", "b"], []).splitlines() == ["a  b", "─  ─"]


def test_ragged_rows_and_unknown_letters_are_refused():
    with pytest.raises(TrilemmaError):
        render_table(["a", "b"], [["1"]])
    with pytest.raises(TrilemmaError):
        render_table(["a"], [["1"]], align="c")


@given(st.text(max_size=40), st.integers(0, 30))
def test_truncated_text_fits(text, width):
    assert display_width(truncate(text, width)) <= width or width == 0


@given(st.lists(st.lists(st.text(max_size=12), min_size=3, max_size=3), max_size=5), st.integers(25, 60))
def test_every_line_fits_the_width(rows, width):
    text = render_table(["one", "two", "three"], rows, align="lll", width=width)
    assert all(display_width(line) <= width for line in text.split("\n"))
