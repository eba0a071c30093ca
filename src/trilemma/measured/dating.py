"""When a measured row was taken, where it does not name an engine version: its date, else the date of the issue it cites."""

from __future__ import annotations

import datetime
import re
from functools import cache

import numpy as np

from trilemma.data.files import read_data

_ISSUE = re.compile(r"github\.com/vllm-project/vllm/(?:issues|pull)/([0-9]{1,7})")
_PERIOD = re.compile(r"(?<![\w.-])(20[0-9]{2})(?:-Q([1-4])(?:\.\.Q([1-4]))?)?(?![\w.-])")
_DATE = re.compile(r"(20[0-9]{2})-([0-9]{2})(?:-([0-9]{2}))?")


def parse_date(text: str) -> datetime.date | None:
    """The first ``2026-04-22`` or ``2026-04`` (taken as its middle) within ``text``; None where there is none."""
    match = _DATE.search(text[:500])
    if match is None:
        return None
    year, month, day = match.groups()
    try:
        return datetime.date(int(year), int(month), int(day or 15))
    except ValueError:
        return None


def parse_period(text: str) -> tuple[datetime.date, datetime.date] | None:
    """First and last day of the year, or of the quarters, that ``text`` names: ``2024``, ``2024-Q3``, ``2024-Q2..Q4``; None for
    none."""
    match = _PERIOD.search(text[:500])
    if match is None:
        return None
    year, first, last = match.groups()
    begins, ends = int(first or 1), int(last or first or 4)
    after = datetime.date(int(year) + ends // 4, ends % 4 * 3 + 1, 1)
    return datetime.date(int(year), 3 * begins - 2, 1), after - datetime.timedelta(days=1)


def date_of_vllm_issue(text: str) -> tuple[int, datetime.date] | None:
    """The vLLM issue or pull request that ``text`` cites and about when it was opened; None where it cites none.

    Interpolated between dated issues. Numbers before the first dated one take its date: that bounds the release from above.
    """
    match = _ISSUE.search(text[:1000])
    if match is None:
        return None
    number = int(match.group(1))
    numbers, days = _dated_issues()
    return number, datetime.date.fromordinal(int(np.interp(number, numbers, days)))


@cache
def _dated_issues() -> tuple[list[int], list[int]]:
    facts = read_data("validation/vllm_issue_dates.toml")
    dated = sorted((int(number), day.toordinal()) for number, day in facts["dates"].items())
    return [number for number, _ in dated], [day for _, day in dated]
