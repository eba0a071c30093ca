"""Stacks of Python processes as ``py-spy dump`` prints them: where each process stands."""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "py-spy"
_MOST = 20_000
_MOST_FRAMES = 60
_PROCESS = re.compile(r"^\s*(?:\S{1,40}[:>] ?)?Process (\d{1,9}): (.{0,200})")
_THREAD = re.compile(
    r"^\s*(?:\S{1,40}[:>] ?)?Thread (?:0x)?([0-9A-Fa-f]{1,20})(?: \((active|idle)[^)]{0,20}\))?(?:: \"(.{1,80})\")?"
)
_FRAME = re.compile(r"^\s*(?:\S{1,40}[:>] ?)?\s{1,8}(\S{1,160}) \((\S{1,200}?):(\d{1,7})\)")


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._threads: list[dict[str, Any]] = []
        self._process: tuple[str, str] | None = None
        self._processes: set[str] = set()

    def take(self, record: str, where: int) -> None:
        if found := _PROCESS.match(record):
            self.greedy = True
            self._process = found[1], found[2].strip()
            if len(self._processes) < _MOST:
                self._processes.add(found[1])
        elif not self.greedy:
            return
        elif found := _THREAD.match(record):
            if len(self._threads) < _MOST and self._process is not None:
                self._threads.append({
                    "process": self._process[0], "command": self._process[1][:160], "thread": found[3] or found[1],
                    "active": found[2] == "active", "frames": [], "line": where,
                })  # fmt: skip
        elif (found := _FRAME.match(record)) and self._threads and len(self._threads[-1]["frames"]) < _MOST_FRAMES:
            self._threads[-1]["frames"].append(f"{found[1]} ({found[2].rpartition('/')[2]})")

    def part(self) -> Part | None:
        if not self._threads:
            return None
        main = [one for one in self._threads if one["thread"] == "MainThread"] or self._threads
        tops: dict[str, int] = {}
        for one in main:
            top = one["frames"][0] if one["frames"] else "no Python frame"
            tops[top] = tops.get(top, 0) + 1
        facts: dict[str, Any] = {"processes": len(self._processes), "threads": len(self._threads)}
        facts["main_threads_in"] = dict(sorted(tops.items(), key=lambda item: -item[1])[:20])
        events = tuple(Event(name="stack", line=one["line"], values=one) for one in main)
        return Part(kind=KIND, weight=5 * len(self._threads), facts=facts, events=events)


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("Process ", "MainThread"))
