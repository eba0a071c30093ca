"""Programs that end on an error: Python's tracebacks, whatever stands before each line (ranks, workers, loggers), errors of CUDA
and ROCm in native code, processes killed by a signal.

What is logged and survived is told apart by what comes after it: a request that was served, a step that was trained.
"""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "program-failure"
_MOST_EVENTS = 200
#: Lines that a traceback may have before its error.
_LONGEST_TRACEBACK = 400
_PREFIX = (
    r"(?>\((?>[^)]{1,60})\)\s*|\[(?>[^\]]{1,80})\]:?\s*|(?:ERROR|WARNING|INFO|CRITICAL|FATAL)\b:?\s*|\d{1,4}[-:.,T/\d]{4,30}Z?\s+"
    r"|[\w.-]{1,40}:\d{1,6}:?\s+|\|\s*|\s)*+"
)
_ERROR = re.compile(
    _PREFIX
    + r"((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Failure|Exit)(?:\w{0,20}))(?:: (.{0,600})|:?\s*$)"
)
_NATIVE = re.compile(
    r"^\s*(?:\S{1,80}: )?((?:CUDA|ROCm|HIP) error): (.{1,200})|(Segmentation fault)|(Fatal Python error): (.{1,200})"
)
_KILLED = re.compile(r"Signal (\d{1,2}) \((SIG\w{3,8})\) received by PID|exitcode\s*: (-\d{1,2})\b")
#: Errors that tell of another one, or of the end that a person asked for.
_WRAPPERS = ("EngineDeadError", "ChildFailedError", "RayTaskError", "SystemExit", "KeyboardInterrupt", "BrokenPipeError",
             "EOFError", "CancelledError", "ConnectionResetError", "ConnectionRefusedError")  # fmt: skip
_TOLD_ABOVE = ("root cause above", "Engine core initialization failed", "EngineCore encountered an issue")
_GOES_ON = re.compile(
    r"Running: [1-9]\d{0,6} reqs|Decode batch|\" 200\b|elapsed time per iteration|\d\.\d{1,4}(?:s/it|it/s)\]"
    r"|\bstep\b.{0,40}\bloss\b|'loss': "
)


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._open = 0
        self._events: dict[tuple[str, str], dict[str, Any]] = {}
        self._last = 0
        self._goes_on = False

    def take(self, record: str, where: int) -> None:
        text = record[:2000]
        if "Traceback (most recent call last)" in text:
            self._open, self.greedy = where, True
            return
        found = _ERROR.match(text) if self._open and where - self._open <= _LONGEST_TRACEBACK else None
        if found is not None:
            self._keep(found[1].rpartition(".")[2], found[2] or "", where)
        elif ("error: " in text or "fault" in text or "Fatal" in text) and (native := _NATIVE.search(text)):
            self._keep(native[1] or native[3] or native[4], native[2] or native[5] or "", where)
        elif ("Signal" in text or "exitcode" in text) and (killed := _KILLED.search(text)):
            number = int(killed[1] or killed[3][1:])
            if number not in (2, 15):  # told to end
                self._keep(f"signal {number}", killed[2] or "", where)
        elif self._events and _GOES_ON.search(text):
            self._goes_on = True

    def _keep(self, name: str, text: str, where: int) -> None:
        self.greedy, self._goes_on, self._last = True, False, where
        known = self._events.get((name, text[:200]))
        if known is not None:
            known["count"] += 1
        elif len(self._events) < _MOST_EVENTS:
            wraps = name in _WRAPPERS or any(words in text for words in _TOLD_ABOVE)
            self._events[name, text[:200]] = {
                "name": name,
                "text": text.strip()[:400],
                "count": 1,
                "line": where,
                "wraps": wraps,
            }

    def part(self) -> Part | None:
        if not self._events:
            return None
        told = list(self._events.values())
        events = tuple(Event(name="error", line=one["line"], values=one) for one in told)
        facts = {
            "errors": len(told),
            "went_on": self._goes_on,
            "first_error": _words(told[0]),
            "last_error": _words(told[-1]),
        }
        return Part(kind=KIND, weight=0.5, facts=facts, events=events)


def _words(values: dict[str, Any]) -> str:
    return f"{values['name']}: {values['text'][:200]}" if values["text"] else str(values["name"])


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    marks=("Traceback (most recent call last)", "CUDA error: ", "ROCm error: ", "HIP error: ", "Segmentation fault",
           "Fatal Python error", " received by PID", "exitcode "),
)  # fmt: skip
