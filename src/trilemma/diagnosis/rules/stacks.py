"""Stacks of the processes of a job: one that stands elsewhere than all others is where to look first."""

from __future__ import annotations

from collections.abc import Iterator

from trilemma.diagnosis.findings import Case, Event, Evidence, Finding
from trilemma.diagnosis.readers.stack_dump import KIND
from trilemma.diagnosis.rules import Rule

_FEWEST = 3
_SHOWN_FRAMES = 4


def _judge(case: Case) -> Iterator[Finding]:
    stacks: list[tuple[str, Event]] = [
        (file, event) for file, part in case.parts(KIND) for event in part.events if event.name == "stack"
    ]
    by_place: dict[str, list[tuple[str, Event]]] = {}
    for file, event in stacks:
        place = event.values["frames"][0] if event.values["frames"] else "no Python frame"
        by_place.setdefault(place, []).append((file, event))
    if len(stacks) < _FEWEST or len(by_place) < 2:
        return
    common = max(by_place, key=lambda place: len(by_place[place]))
    odd = [one for place, those in by_place.items() if place != common for one in those]
    if len(odd) > max(len(stacks) // 4, 1):
        return
    told = "; ".join(
        f"process {event.values['process']} in {' < '.join(event.values['frames'][:_SHOWN_FRAMES]) or 'native code'}"
        for _, event in odd[:4]
    )
    yield Finding(
        id="hang.odd-process", role="root", severity="error",
        claim=f"{len(stacks) - len(odd)} of {len(stacks)} processes stand in {common}; others do not: {told}",
        evidence=tuple(Evidence(file=file, line=event.line, value=told[:300]) for file, event in odd[:4]),
        expected=f"every rank in {common}", observed=f"{len(odd)} elsewhere", confidence="supported",
        fix="what this process waits for holds up the others: its data loader, a lock, a device that does not answer",
    )  # fmt: skip


RULE = Rule(needs=(KIND,), judge=_judge)
