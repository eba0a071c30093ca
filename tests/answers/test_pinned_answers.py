"""The golden questions are answered as they were when somebody last looked (``pinned.py`` writes answers down anew)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pinned import SCREEN, asked, found, kept, plain, write_files

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
#: Bars and columns may move by a character where a figure moves in its last digit.
_DRAWN = re.compile(r"[\s█▏▎▍▌▋▊▉▕▒░─]+")
_BAR = re.compile(r"[█▏▎▍▌▋▊▉]+")
QUESTIONS = asked()


def differs(before: str, now: str) -> str | None:
    """The first line that says something else; figures may differ by one in their last digit, as between processors."""
    for old, new in zip(before.splitlines(), now.splitlines(), strict=False):
        if old == new:
            continue
        words = [_DRAWN.sub(" ", _NUMBER.sub("#", one)) for one in (old, new)]
        figures = [_NUMBER.findall(one) for one in (old, new)]
        same = len(figures[0]) == len(figures[1]) and all(map(_is_near, *figures))
        bars = [[len(bar) for bar in _BAR.findall(one)] for one in (old, new)]
        alike = len(bars[0]) == len(bars[1]) and all(
            abs(first - second) <= 1 for first, second in zip(*bars, strict=True)
        )
        if words[0] != words[1] or not same or not alike:
            return f"before: {old}\nnow:    {new}"
    count = len(before.splitlines()), len(now.splitlines())
    return None if count[0] == count[1] else f"{count[0]} lines before, {count[1]} now"


def _is_near(old: str, new: str) -> bool:
    digits, _, power = old.partition(".")[2].partition("e")
    last = 10.0 ** (int(power or 0) - len(digits))
    return abs(_value(old) - _value(new)) <= 1.01 * last if digits else _value(old) == _value(new)


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def test_every_question_has_an_answer() -> None:
    assert list(dict.fromkeys(QUESTIONS)) == QUESTIONS
    assert set(kept()) == set(QUESTIONS)


@pytest.mark.parametrize(
    "number", range(len(QUESTIONS)), ids=lambda number: f"{number:03}-{QUESTIONS[number].split()[0]}"
)
def test_an_answer_is_what_it_was(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name, value in SCREEN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    write_files()
    line = QUESTIONS[number]
    told = differs(kept()[line], plain(found(line)))
    assert told is None, f"trilemma {line}\n{told}"


def test_a_figure_that_moves_is_told_and_a_last_digit_is_not() -> None:
    assert differs("TPOT 7.84 ms █▏", "TPOT 7.85 ms █") is None
    assert differs("TPOT 7.84 ms", "TPOT 7.86 ms") is not None
    assert differs("6.79071e-08 s", "6.79072e-08 s") is None
    assert differs("6.79071e-08 s", "6.79091e-08 s") is not None
    assert differs("1.60605e+10 bytes", "1.60606e+10 bytes") is None
    assert differs("1,024 tokens", "1,025 tokens") is not None
    assert differs("FITS", "DOES NOT FIT") is not None
    assert differs("one", "one\ntwo") is not None
    assert differs("70 % ███████", "70 % ███") is not None
