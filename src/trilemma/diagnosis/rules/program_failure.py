"""An error on which a program ended, where no finding of its own says more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from trilemma.data.files import read_data
from trilemma.diagnosis.findings import Case, Event, Evidence, Finding
from trilemma.diagnosis.readers.engine_start import KIND as ENGINE
from trilemma.diagnosis.readers.nccl_debug import KIND as COLLECTIVES
from trilemma.diagnosis.readers.out_of_memory import KIND as ALLOCATION
from trilemma.diagnosis.readers.program_failure import KIND
from trilemma.diagnosis.rules import Rule


def _judge(case: Case) -> Iterator[Finding]:
    for file, part in case.parts(KIND):
        errors = [one for one in part.events if not one.values["wraps"]]
        if errors and not _told(case, file, errors):
            # Of a chain the first is the cause, the others were raised while it was handled or in processes that waited.
            yield _ended(file, errors, went_on=bool(part.facts["went_on"]))


def _told(case: Case, file: str, errors: list[Event]) -> bool:
    """Whether a reader of its own took what the program ended on."""
    if any("out of memory" in one.values["text"].lower() for one in errors):
        return any(name == file for name, _ in case.parts(ALLOCATION)) or _refused(case, file)
    timed_out = any(
        one.name == "timeout" for name, part in case.parts(COLLECTIVES) if name == file for one in part.events
    )
    return timed_out or _refused(case, file)


def _refused(case: Case, file: str) -> bool:
    return any(one.name == "refusal" for name, part in case.parts(ENGINE) if name == file for one in part.events)


def _ended(file: str, errors: list[Event], *, went_on: bool) -> Finding:
    shown = [
        (f"{one.values['name']}: {one.values['text']}" if one.values["text"] else one.values["name"]) for one in errors
    ]
    at, row = next(((at, row) for at, words in enumerate(shown) for row in _rows() if row[0].search(words)), (0, None))
    first = errors[at]
    many = f", {first.values['count']} times" if first.values["count"] > 1 else ""
    means = f": {row[1]}" if row is not None else ""
    return Finding(
        id="program.error",
        role="context" if went_on else "root",
        severity="context" if went_on else "error",
        claim=("an error was logged, and the program went on" if went_on else "the program ended on an error")
        + f"{many}, {shown[at][:200]}{means}",
        evidence=tuple(Evidence(file=file, line=one.line, value=words[:300]) for one, words in
                       zip([first, *(one for one in errors if one is not first)], [shown[at], *(
                           words for place, words in enumerate(shown) if place != at)], strict=True))[:3],
        observed=str(first.values["name"]),
        confidence="established" if row is not None else "supported",
        fix=row[2] if row is not None else "read the lines before it, of the process that failed first",
    )  # fmt: skip


@cache
def _rows() -> tuple[tuple[re.Pattern[str], str, str], ...]:
    """(pattern, what it means, what mends it)."""
    rows = read_data("diagnosis/errors.toml")["error"]
    return tuple((re.compile(row["pattern"]), row["means"], row["fix"]) for row in rows)


RULE = Rule(needs=(KIND,), judge=_judge)
