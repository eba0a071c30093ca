"""``sacct``, ``squeue`` and ``sinfo`` as text: jobs by state and how they ended. Columns by the header, fixed, or parsable
(``-P``) with any delimiter, in any order."""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "slurm-accounting"
_MOST = 50_000
_STATES = (
    "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY", "OUT_OF_ME+", "NODE_FAIL", "PREEMPTED", "RUNNING",
    "PENDING", "REQUEUED", "BOOT_FAIL", "DEADLINE", "SUSPENDED",
)  # fmt: skip
_STATE = re.compile(r"(?:^|[|\s])(" + "|".join(map(re.escape, _STATES)) + r")(?: by \d{1,12})?(?=$|[|\s])")
_PARSABLE = re.compile(r"[A-Za-z](\|[^A-Za-z\s]{0,3}|[;\t,])[A-Z]")
_WANTED = ("JobID", "State", "ExitCode", "Elapsed", "JobName", "NodeList")
_CODE = re.compile(r"(?:^|[|\s])(\d{1,3}:\d{1,3})(?=$|[|\s])")
_JOB = re.compile(r"^\s*(\d{1,12}(?:_\d{1,8}|_\[[^\]]{1,40}\])?)(?:\.(\w{1,20}))?[|\s]")


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._states: dict[str, int] = {}
        self._events: list[Event] = []
        self._steps = 0
        self._delimiter = ""
        self._columns: dict[str, int] = {}

    def take(self, record: str, where: int) -> None:
        if "JobID" in record and ("State" in record or "Elapsed" in record):
            self.greedy = True
            head = _PARSABLE.search(record)
            self._delimiter = head[1] if head else ""
            names = record.strip().split(self._delimiter) if head else []
            self._columns = {name: at for at, name in enumerate(names) if name in _WANTED}
            return
        text = record[:2000]
        if "JobID" in self._columns and "State" in self._columns:
            cells = record.split(self._delimiter)
            if len(cells) <= max(self._columns.values()):
                return  # the rest of a comment that was broken over lines
            text = "|".join(cells[self._columns[name]].strip() for name in _WANTED if name in self._columns)
        job = _JOB.match(text) if self.greedy else None
        state = _STATE.search(text) if job is not None else None
        if job is None or state is None:
            return
        name = "OUT_OF_MEMORY" if state[1].startswith("OUT_OF_ME") else state[1]
        if job[2] is not None and job[2] != "batch":
            self._steps += 1
            if name not in ("OUT_OF_MEMORY", "NODE_FAIL"):  # of a step alone: the job may end well
                return
        if job[2] is None:
            self._states[name] = self._states.get(name, 0) + 1
        code = _CODE.search(text)
        if len(self._events) < _MOST:
            values = {"job": job[1], "state": name, "exit_code": code[1] if code else "", "text": text.strip()[:200]}
            self._events.append(Event(name="job", line=where, values=values))

    def part(self) -> Part | None:
        if not self._states and not self._steps:
            return None
        facts: dict[str, Any] = {
            "jobs": sum(self._states.values()),
            "jobs_by_state": self._states,
            "steps": self._steps,
        }
        return Part(
            kind=KIND, weight=2 * sum(self._states.values()) + self._steps, facts=facts, events=tuple(self._events)
        )


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("JobID",))
