"""Kernel logs (dmesg, syslog, journal, /dev/kmsg): errors of NVIDIA GPUs (Xid) and switches (SXid), and GPUs that are lost.

A message that comes again, at another time, is the same event: a node can print one 800,000 times (NVSentinel issue 1120). What
differs in its process or its text is another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "kernel-log"
_MOST_EVENTS = 20_000
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): (\d{1,4})(?:,\s*(.{0,400}))?")
_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]{4,20})\): (\d{1,6})(?:,\s*(.{0,400}))?")
_LOST = re.compile(
    r"(?:GPU(?: at)?|NVIDIA GPU|[Hh]andle)[ :]{1,3}(?:PCI:)?(?:0x)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"
)
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})")
_PROCESS = re.compile(r"pid=['<]?([\w ]{1,20})['>]?, name=['<]?([^,'>]{1,60})")
_STARTS = ("NVRM: Xid", "SXid (PCI")
#: A host before the word: "Aug 30 11:11:22 node7 kernel: ", "2024-08-30T11:11:22+0000 node7 kernel: ".
_SYSLOG = re.compile(r"\d\d:\d\d:\d\d\S{0,24} \S{1,80} kernel: ")
_MARKS = ("NVRM: ", "fallen off the bus", "GPU is lost", "Linux version ", "segfault at ", "nvidia-peermem",
          "Out of memory: Killed process", "nvidia-nvswitch", "oom-kill:")  # fmt: skip
_SEGFAULT = re.compile(r"(\S{1,60}\[\d{1,9}\]): segfault at .{0,120}? in (lib\S{1,60}?|\S{1,60}?)\[")


@dataclass(slots=True)
class _Kept:
    name: str
    line: int
    values: dict[str, Any]
    count: int = 1
    last: int = 0


class _Gatherer:
    def __init__(self) -> None:
        self._events: dict[str, _Kept] = {}
        self._lines = 0
        self._beyond = 0
        self._pending: tuple[int, str] | None = None
        self._boot = 0
        self._kernel_lines = 0

    def take(self, record: str, where: int) -> None:
        if "kernel: " in record and not _SYSLOG.search(record[:200]) and not any(mark in record for mark in _MARKS):
            return  # "compiling fp8 kernel: 10%"
        for start in _STARTS:
            at = record.find(start)
            if at >= 0:
                self._lines += 1
                self._numbered(record[at:].rstrip(), where)
                return
        self._kernel_lines += 1
        if "fallen off the bus" in record or "GPU is lost" in record:
            self._lost(record, where)
        elif "The NVIDIA GPU" in record:
            found = _ADDRESS.search(record)
            self._pending = (where, _short(found[1])) if found else None
        elif "Linux version" in record or "NVRM: loading NVIDIA" in record:
            what = "boot" if "Linux version" in record else "driver-load"
            self._boot += 1
            self._keep(f"{what} {self._boot}", what, where, {"text": record.strip()[:120]})
        elif "segfault at" in record and (found := _SEGFAULT.search(record)):
            self._keep(f"segfault {found[1]} {found[2]}", "segfault", where, {"process": found[1], "library": found[2]})
        elif "detected invalid context" in record:
            self._keep(
                "peermem", "peermem", where, {"text": "nvidia-peermem: invalid context, skipping further processing"}
            )
        elif "Killed process" in record or "Out of memory:" in record:
            self._keep("host-oom", "host-out-of-memory", where, {"text": record.strip()[:200]})

    def _numbered(self, message: str, line: int) -> None:
        known = self._events.get(message)
        if known is not None:
            known.count += 1
            known.last = line
            return
        sxid = message.startswith("SXid")
        found = (_SXID if sxid else _XID).match(message)
        if found is None:
            return
        text = (found[3] or "").strip()
        values: dict[str, Any] = {"gpu": _short(found[1]), "number": int(found[2]), "text": text}
        process = _PROCESS.search(text)
        if process:
            values |= {"pid": process[1].strip(), "process": process[2].strip()}
        if sxid:
            values["fatal"] = "Non-fatal" not in text and "fatal" in text.lower()
        self._keep(message, "sxid" if sxid else "xid", line, values)

    def _lost(self, record: str, line: int) -> None:
        """The GPU's address stands in the line or, in the message of three lines, in the one before the last."""
        found = _LOST.search(record) or _ADDRESS.search(record)
        gpu = _short(found[1]) if found else None
        if gpu is None and self._pending is not None and line - self._pending[0] <= 4:
            gpu = self._pending[1]
        self._pending = None
        self._keep(f"lost {gpu}", "lost", line, {"gpu": gpu or "unknown", "text": record.strip()[:200]})

    def _keep(self, key: str, name: str, line: int, values: dict[str, Any]) -> None:
        known = self._events.get(key)
        if known is not None:
            known.count += 1
            known.last = line
        elif len(self._events) < _MOST_EVENTS:
            self._events[key] = _Kept(name=name, line=line, values=values, last=line)
        else:
            self._beyond += 1

    def part(self) -> Part | None:
        if not self._events and not self._kernel_lines:
            return None
        events = tuple(
            Event(name=one.name, line=one.line, values={**one.values, "count": one.count, "last_line": one.last})
            for one in self._events.values()
        )
        facts: dict[str, Any] = {}
        for name in ("xid", "sxid"):
            numbers: dict[str, dict[str, Any]] = {}
            for event in events:
                if event.name == name:
                    row = numbers.setdefault(str(event.values["number"]), {"events": 0, "lines": 0, "gpus": []})
                    row["events"] += 1
                    row["lines"] += event.values["count"]
                    if event.values["gpu"] not in row["gpus"]:
                        row["gpus"].append(event.values["gpu"])
            facts[f"{name}_events"] = sum(row["events"] for row in numbers.values())
            facts[f"{name}_lines"] = sum(row["lines"] for row in numbers.values())
            if numbers:
                facts[f"{name}s"] = numbers
        lost = [event.values["gpu"] for event in events if event.name == "lost"]
        if lost:
            facts["lost_gpus"] = lost
        if self._beyond:
            facts["events_beyond_the_limit"] = self._beyond
        return Part(kind=KIND, weight=self._lines + self._kernel_lines, facts=facts, events=events)


def _short(address: str) -> str:
    """ "0000:9b:00" of every way to write it: domain of four digits, no function."""
    parts = address.lower().split(".")[0].split(":")
    if len(parts) >= 3:
        return ":".join((parts[0][-4:], *parts[1:3]))
    return address.lower()


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer,
    own=_STARTS, marks=(*_MARKS, ",-;", "kernel: "),
)  # fmt: skip
