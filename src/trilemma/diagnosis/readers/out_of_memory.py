"""Out-of-memory errors of PyTorch on CUDA, ROCm and XPU: every figure of the message.

Texts: c10/cuda/CUDACachingAllocator.cpp, since 2.1 ("has a total capacity of … of which … is free"), before it "(GPU 0; … total
capacity; … already allocated; … free; … reserved in total by PyTorch)".
"""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader
from trilemma.quantities import GIB, KIB, MIB

KIND = "out-of-memory"
_MOST_EVENTS = 2000
_B = r"([0-9][0-9.,]{0,20}) ?(bytes|B|KiB|MiB|GiB|TiB)"
_UNITS = {"bytes": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB}
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("request_bytes", re.compile(rf"Tried to allocate {_B}")),
    ("capacity_bytes", re.compile(rf"total capacity of {_B}")),
    ("capacity_bytes", re.compile(rf"; {_B} total capacity")),
    ("free_bytes", re.compile(rf"of which {_B} is free")),
    ("free_bytes", re.compile(rf"; {_B} free")),
    ("process_bytes", re.compile(rf"this process has {_B} memory in use")),
    ("allocated_bytes", re.compile(rf"allocated memory {_B} is allocated by PyTorch")),
    ("allocated_bytes", re.compile(rf"; {_B} already allocated")),
    ("private_pools_bytes", re.compile(rf"with {_B} allocated in private pools")),
    ("unallocated_bytes", re.compile(rf"and {_B} is reserved by PyTorch but unallocated")),
    ("reserved_bytes", re.compile(rf"; {_B} reserved in total by PyTorch")),
    ("allowed_bytes", re.compile(rf"{_B} allowed")),
)
_OTHERS = re.compile(rf"Process (\d{{1,9}}) has {_B} memory in use")
_GPU = re.compile(r"GPU (\d{1,4})")
_BACKEND = re.compile(r"(CUDA|HIP|XPU) (?:error: )?out of memory")


class _Gatherer:
    def __init__(self) -> None:
        self._events: dict[str, Event] = {}
        self._lines = 0

    def take(self, record: str, where: int) -> None:
        found = _BACKEND.search(record)
        if found is None:
            return
        self._lines += 1
        text = record[found.start() :][:4000]
        if text in self._events or len(self._events) >= _MOST_EVENTS:
            return
        values: dict[str, Any] = {"backend": found[1], "text": text[:300]}
        for name, pattern in _PATTERNS:
            if name not in values and (match := pattern.search(text)):
                values[name] = _bytes(match[1], match[2])
        others = {match[1]: _bytes(match[2], match[3]) for match in _OTHERS.finditer(text)}
        if others:
            values["others_bytes"] = others
        gpu = _GPU.search(text)
        if gpu:
            values["gpu"] = int(gpu[1])
        if "unallocated_bytes" not in values and {"reserved_bytes", "allocated_bytes"} <= values.keys():
            values["unallocated_bytes"] = max(values["reserved_bytes"] - values["allocated_bytes"], 0)
        self._events[text] = Event(name="out-of-memory", line=where, values=values)

    def part(self) -> Part | None:
        if not self._events:
            return None
        events = tuple(self._events.values())
        first = {
            name: value
            for name, value in events[0].values.items()
            if name.endswith("_bytes") and name != "others_bytes"
        }
        facts = {"out_of_memory_errors": len(events), "out_of_memory_lines": self._lines, **first}
        return Part(kind=KIND, weight=5 * self._lines, facts=facts, events=events)


def _bytes(number: str, unit: str) -> int:
    try:
        return round(float(number.replace(",", "").rstrip(".")) * _UNITS[unit])
    except ValueError:
        return 0


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("out of memory",))
