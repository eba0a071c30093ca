"""Logs of NVIDIA's fabric manager: multicast teams, and errors of switches and links by port."""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "fabric-manager-log"
_MOST = 2000
_LINE = re.compile(r"^\[[^\]]{6,40}\] \[([A-Z]{4,8})\] \[tid \d{1,9}\] (.{1,600})")
_SWITCH = re.compile(
    r"detected NVSwitch (non-fatal|fatal) error (\d{1,6}) on fid (\d{1,4}) on NVSwitch pci bus id ([0-9a-fA-F:.]{4,20})"
    r"(?:.{0,40}?port (\d{1,4}))?"
)


class _Gatherer:
    def __init__(self) -> None:
        self._levels: dict[str, int] = {}
        self._teams = {"allocated": 0, "freed": 0}
        self._events: dict[str, dict[str, Any]] = {}
        self._at: dict[str, int] = {}

    def take(self, record: str, where: int) -> None:
        found = _LINE.match(record)
        if found is None:
            return
        level, text = found[1], found[2]
        if level in self._levels or len(self._levels) < 16:
            self._levels[level] = self._levels.get(level, 0) + 1
        for word in self._teams:
            self._teams[word] += text.startswith("multicast group") and text.endswith(f"is {word}.")
        if level not in ("ERROR", "CRITICAL", "FATAL", "WARNING"):
            return
        values: dict[str, Any] = {"text": text[:300], "level": level}
        if switch := _SWITCH.search(text):
            values |= {"fatal": switch[1] == "fatal", "number": int(switch[2]), "switch": switch[4], "port": switch[5]}
        key = text[:300]
        if key in self._events:
            self._events[key]["count"] += 1
        elif len(self._events) < _MOST:
            self._events[key] = {**values, "count": 1}
            self._at[key] = where

    def part(self) -> Part | None:
        if not self._levels:
            return None
        events = tuple(Event(name="error", line=self._at[key], values=one) for key, one in self._events.items())
        facts: dict[str, Any] = {"lines_by_level": dict(self._levels), "multicast_teams": dict(self._teams)}
        numbers = [one["number"] for one in self._events.values() if "number" in one]
        if numbers:
            facts["switch_errors"] = {str(number): numbers.count(number) for number in sorted(set(numbers))}
        return Part(kind=KIND, weight=sum(self._levels.values()), facts=facts, events=events)


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("] [tid ",))
