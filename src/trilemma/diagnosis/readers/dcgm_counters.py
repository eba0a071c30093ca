"""The list of counters that DCGM's exporter is told to collect (CSV): those that are on, and those commented out."""

from __future__ import annotations

import re

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "dcgm-counters"
_MOST = 2000
_ROW = re.compile(r"^\s*(#?)\s*(DCGM_\w{3,80})\s*,\s*(gauge|counter|label|histogram)\b")


class _Gatherer:
    def __init__(self) -> None:
        self._on: dict[str, int] = {}
        self._off: dict[str, int] = {}

    def take(self, record: str, where: int) -> None:
        found = _ROW.match(record)
        if found is not None and len(self._on) + len(self._off) < _MOST:
            (self._off if found[1] else self._on)[found[2]] = where

    def part(self) -> Part | None:
        if not self._on and not self._off:
            return None
        facts = {
            "collected": len(self._on), "left_out": len(self._off), "fields": sorted(self._on)[:200],
            "fields_left_out": sorted(self._off)[:200],
        }  # fmt: skip
        events = tuple(Event(name="left-out", line=line, values={"field": name}) for name, line in self._off.items())
        return Part(kind=KIND, weight=len(self._on) + len(self._off), facts=facts, events=events)


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer, marks=(", gauge", ", counter", ", label", ",  gauge", ",  counter")
)
