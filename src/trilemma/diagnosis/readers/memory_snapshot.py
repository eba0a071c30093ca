"""Snapshots of PyTorch's allocator (``torch.cuda.memory._dump_snapshot``): segments and blocks by state and stream, failures, and
which lines of code hold the most. Read by the locked pickle machine, or as JSON.

Fields: torch/cuda/memory.py ``memory_snapshot``; states of blocks in c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from typing import Any

from trilemma.diagnosis.findings import Event, Part, text_of
from trilemma.diagnosis.readers import Reader

KIND = "memory-snapshot"
_MOST_SEGMENTS = 200_000
_MOST_PLACES = 50_000
_STATES = ("active_allocated", "active_awaiting_free", "active_pending_free", "inactive")
_SHOWN = 10
#: Frames that say nothing of who allocates.
_INNER = ("torch::", "c10::", "at::", "??", "pybind", "_PyEval", "PyObject", "_start", "Py_", "_Py")


class _Gatherer:
    def __init__(self) -> None:
        self._segments = 0
        self._sums = {"reserved": 0, "allocated": 0, "active": 0, "requested": 0, "largest_inactive": 0}
        self._states = dict.fromkeys(_STATES, 0)
        self._streams: dict[str, dict[str, int]] = {}
        self._expandable = 0
        self._holders: dict[str, int] = {}
        self._failures: list[dict[str, Any]] = []
        self._trace = 0
        self._trace_allocs: dict[str, int] = {}
        self._settings: dict[str, Any] = {}
        self._history = False

    def take(self, record: Any, where: str) -> None:
        if where in ("segments", "") and isinstance(record, dict) and isinstance(record.get("blocks"), list):
            if self._segments < _MOST_SEGMENTS:
                self._segments += 1
                self._segment(record)
        elif where == "device_traces" and isinstance(record, list):
            for event in record:
                if isinstance(event, dict):
                    self._event(event)
        elif where == "allocator_settings" and isinstance(record, dict):
            self._settings = {text_of(key, 40): value for key, value in list(record.items())[:40]
                              if isinstance(value, bool | int | float | str)}  # fmt: skip
        elif where.startswith("PYTORCH_") or where in ("expandable_segments", "max_split_size"):
            self._settings[where] = record

    def _segment(self, segment: dict[str, Any]) -> None:
        size = _size(segment.get("total_size"))
        self._sums["reserved"] += size
        self._sums["allocated"] += _size(segment.get("allocated_size"))
        self._sums["active"] += _size(segment.get("active_size"))
        self._sums["requested"] += _size(segment.get("requested_size"))
        self._expandable += bool(segment.get("is_expandable"))
        stream = text_of(segment.get("stream"), 40)
        if stream not in self._streams and len(self._streams) >= 256:
            stream = "further streams"
        kept = self._streams.setdefault(stream, {"reserved": 0, "allocated": 0, "later_allocations": 0})
        kept["reserved"] += size
        kept["allocated"] += _size(segment.get("allocated_size"))
        for block in segment["blocks"]:
            if not isinstance(block, dict):
                continue
            state, bytes_ = text_of(block.get("state"), 40), _size(block.get("size"))
            if state in self._states:
                self._states[state] += bytes_
            if state == "inactive":
                self._sums["largest_inactive"] = max(self._sums["largest_inactive"], bytes_)
            elif state == "active_allocated":
                self._hold(block, bytes_)

    def _hold(self, block: dict[str, Any], bytes_: int) -> None:
        frames = block.get("frames")
        if not frames and isinstance(block.get("history"), list) and block["history"]:
            newest = block["history"][0]
            frames = newest.get("frames") if isinstance(newest, dict) else None
        place = _place(frames)
        self._history = self._history or bool(place)
        if place and (place in self._holders or len(self._holders) < _MOST_PLACES):
            self._holders[place] = self._holders.get(place, 0) + bytes_

    def _event(self, event: dict[str, Any]) -> None:
        self._trace += 1
        action = event.get("action")
        if action == "alloc":
            stream = text_of(event.get("stream"), 40)
            if stream in self._streams:
                self._streams[stream]["later_allocations"] += 1
        elif action == "oom" and len(self._failures) < 100:
            place = _place(event.get("frames"))
            self._failures.append({"request_bytes": _size(event.get("size")), "free_bytes": _size(event.get("device_free")),
                                   "place": place, "text": f"out of memory for {_size(event.get('size'))} bytes"})  # fmt: skip

    def part(self) -> Part | None:
        if not self._segments and not self._trace:
            return None
        facts: dict[str, Any] = {
            "segments": self._segments, "reserved_bytes": self._sums["reserved"], "allocated_bytes": self._sums["allocated"],
            "active_bytes": self._sums["active"], "requested_bytes": self._sums["requested"],
            "unallocated_bytes": self._sums["reserved"] - self._sums["allocated"],
            "largest_unallocated_bytes": self._sums["largest_inactive"],
            "bytes_by_state": {name: size for name, size in self._states.items() if size},
            "trace_events": self._trace,
        }  # fmt: skip
        if len(self._streams) > 1:
            facts["reserved_bytes_by_stream"] = {name: one["reserved"] for name, one in self._streams.items()}
        if self._settings:
            facts["settings"] = self._settings
        facts["with_stacks"] = self._history
        if self._holders:
            ordered = sorted(self._holders.items(), key=lambda one: -one[1])[:_SHOWN]
            facts["allocated_bytes_by_place"] = dict(ordered)
        if self._failures:
            facts["failures"] = len(self._failures)
        facts["expandable_segments"] = self._expandable
        events = [Event(name="failure", line=None, values=one) for one in self._failures]
        events += [
            Event(name="stream", line=None, values={"stream": name, **one}) for name, one in self._streams.items()
        ]
        return Part(kind=KIND, weight=10 + self._segments, facts=facts, events=tuple(events))


def _size(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**60 else 0


def _place(frames: Any) -> str:
    """The innermost Python line of a stack."""
    if not isinstance(frames, list):
        return ""
    for frame in frames[:64]:
        if isinstance(frame, dict):
            name, file = text_of(frame.get("name"), 80), text_of(frame.get("filename"), 200)
            if name and file.endswith(".py") and not name.startswith(_INNER) and "/torch/" not in file:
                return f"{name} ({file.rpartition('/')[2]}:{text_of(frame.get('line'), 12)})"
    return ""


READER = Reader(kind=KIND, form="items", begin=_Gatherer)
