"""Dates of rows that name no engine version."""

from __future__ import annotations

import datetime

import pytest

from trilemma.measured.dating import date_of_vllm_issue, parse_date, parse_period


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-04-22", datetime.date(2026, 4, 22)),
        ("2026-08", datetime.date(2026, 8, 15)),
        ("0.11.2 (fork build of 2026-08-10)", datetime.date(2026, 8, 10)),
        ("2026-13-40", None),
        ("spring", None),
        ("", None),
    ],
)
def test_dates_are_read(text: str, expected: datetime.date | None) -> None:
    assert parse_date(text) == expected


def test_issue_numbers_are_dated_between_known_issues() -> None:
    # vllm-project/vllm issue 17462 was opened on 2025-04-30 (its own page); between 15357 and 17549.
    dated = date_of_vllm_issue("https://github.com/vllm-project/vllm/issues/17462")
    assert dated is not None
    assert dated[0] == 17462
    assert abs((dated[1] - datetime.date(2025, 4, 30)).days) <= 7


def test_other_repositories_and_old_numbers() -> None:
    assert date_of_vllm_issue("https://github.com/sgl-project/sglang/issues/4330") is None
    old = date_of_vllm_issue("https://github.com/vllm-project/vllm/pull/2031")
    assert old == (2031, datetime.date(2024, 4, 21))


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2024", (2024, 1, 1), (2024, 12, 31)),
        ("2024 (not stated)", (2024, 1, 1), (2024, 12, 31)),
        ("2024-Q2..Q4 (not stated)", (2024, 4, 1), (2024, 12, 31)),
        ("in 2025-Q1", (2025, 1, 1), (2025, 3, 31)),
    ],
)
def test_periods_are_read(text: str, first: tuple[int, int, int], last: tuple[int, int, int]) -> None:
    assert parse_period(text) == (datetime.date(*first), datetime.date(*last))


@pytest.mark.parametrize("text", ["", "nightly-20260216", "v0.2024.1", "2024-05-01", "1.2024"])
def test_what_names_no_period(text: str) -> None:
    assert parse_period(text) is None
