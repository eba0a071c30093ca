"""Traces in Chrome's format as PyTorch's profiler (Kineto) writes them, one rank a file.

Of events of the GPU only those count whose launch the trace holds too: what was launched before the profiler began has no
place in the step (a trace that holds no launch at all counts every event). A kernel's launch is the call of the runtime or
driver with the same ``correlation``; kernels of a graph share the one of its launch.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from dataclasses import asdict
from typing import Any

import numpy as np

from trilemma.diagnosis.collectives import CollectiveTimes
from trilemma.diagnosis.findings import Part, text_of
from trilemma.diagnosis.kernels import kind_of, work_of
from trilemma.diagnosis.readers import Reader
from trilemma.diagnosis.timelines import timeline

KIND = "kineto-trace"
_ON_GPU = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"))
_LAUNCHES = frozenset(("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "privateuse1_runtime", "xpu_runtime"))
_WORKS = ("compute", "communication", "copy")
_MOST_EVENTS = 12_000_000
_MOST_NAMES = 5_000
_MOST_COLLECTIVES = 200_000
_TOP = 20
_SYNCHRONISING = re.compile(r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize")


class _Gatherer:
    def __init__(self) -> None:
        self._events = 0
        self._starts, self._durations = array("d"), array("d")
        self._work, self._kinds, self._names = array("b"), array("b"), array("l")
        self._correlations, self._launched = array("q"), array("q")
        self._devices = array("h")
        self._kind_index: dict[str, int] = {}
        self._name_index: dict[str, int] = {}
        self._facts: dict[str, Any] = {}
        self._steps = 0
        self._dropped = 0
        self._host: dict[str, float] = defaultdict(float)
        self._collectives = CollectiveTimes()
        self._whole: dict[str, Any] = {"kinds": {}, "attention_calls": 0}

    def take(self, record: Any, where: str) -> None:
        if where not in ("traceEvents", ""):
            self._describe(where, record)
            return
        if not isinstance(record, dict) or "ph" not in record:
            return
        self._events += 1
        category = record.get("cat")
        if record["ph"] != "X" or not isinstance(category, str):
            return
        if category in _ON_GPU:
            self._on_gpu(record, category)
        elif category in _LAUNCHES:
            self._launch(record)
        elif category == "user_annotation" and text_of(record.get("name")).startswith("ProfilerStep"):
            self._steps += 1

    def _describe(self, key: str, value: Any) -> None:
        if key == "deviceProperties" and isinstance(value, dict) and "device" not in self._facts:
            self._facts["device"] = text_of(value.get("name")) or "unnamed"
        elif key == "distributedInfo" and isinstance(value, dict):
            for name in ("rank", "world_size", "backend"):
                if text_of(value.get(name)):
                    self._facts[name] = value[name]

    def _on_gpu(self, record: dict[str, Any], category: str) -> None:
        arguments = record.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        start, duration = _number(record.get("ts")), _number(record.get("dur"))
        if start is None or duration is None or duration < 0:
            return
        if len(self._starts) >= _MOST_EVENTS:
            self._dropped += 1
            return
        name = text_of(record.get("name"), 1000)
        kind = kind_of(category, name)
        self._starts.append(start)
        self._durations.append(duration)
        self._work.append(_WORKS.index(work_of(category, name)))
        self._kinds.append(self._kind_index.setdefault(kind, len(self._kind_index)))
        if name not in self._name_index and len(self._name_index) >= _MOST_NAMES:
            name = "further kernels"
        self._names.append(self._name_index.setdefault(name, len(self._name_index)))
        if "Collective name" in arguments:
            self._collectives.take(arguments, duration)
        self._correlations.append(_whole(arguments.get("correlation"), -1))
        self._devices.append(_whole(arguments.get("device", record.get("pid")), 0) % 32_768)

    def _launch(self, record: dict[str, Any]) -> None:
        arguments = record.get("args")
        name = text_of(record.get("name"))
        if isinstance(arguments, dict) and len(self._launched) < _MOST_EVENTS:
            self._launched.append(_whole(arguments.get("correlation"), -2))
        if _SYNCHRONISING.match(name):
            self._host[name] += _number(record.get("dur")) or 0.0

    def part(self) -> Part | None:
        if not self._events:
            return None
        facts = {**self._facts, "events": self._events}
        if self._steps:
            facts["steps"] = self._steps
        facts |= self._measured()
        if self._dropped:
            facts["events_beyond_the_limit"] = self._dropped
        return Part(kind=KIND, weight=self._events, facts=facts, whole=self._whole)

    def _measured(self) -> dict[str, Any]:
        if not self._starts:
            return {"gpu_events": 0}
        starts, durations = np.array(self._starts), np.array(self._durations)
        work, kinds, names = np.array(self._work), np.array(self._kinds), np.array(self._names)
        linked = np.isin(np.array(self._correlations), np.array(self._launched))
        if not linked.any():
            linked = np.ones(len(starts), dtype=bool)
        told: dict[str, Any] = {
            "gpu_events": int(linked.sum()),
            "gpu_events_launched_before": int((~linked).sum()),
        }
        starts, durations, work, kinds, names = (one[linked] for one in (starts, durations, work, kinds, names))
        origin = starts.min()  # microseconds since boot lose digits in sums
        told |= {key: round(value, 6) for key, value in
                 asdict(timeline(starts - origin, starts - origin + durations, work)).items()}  # fmt: skip
        told["kernel_ms_by_kind"] = _sums(kinds, durations, self._kind_index)
        told["calls_by_kind"] = {
            kind: int((kinds == at).sum()) for kind, at in self._kind_index.items() if (kinds == at).any()
        }
        self._whole = {"kinds": {kind: (float(durations[kinds == at].sum()) / 1e3, int((kinds == at).sum()))
                                 for kind, at in self._kind_index.items()},
                       "attention_calls": self._calls_of("attention", kinds, names, durations)}  # fmt: skip
        order = np.argsort(starts[work == 1], kind="stable")[:_MOST_COLLECTIVES]
        self._whole["communication_us"] = durations[work == 1][order]
        if collectives := self._collectives.facts():
            told["collectives"] = collectives
        communication = work == 1
        if communication.any():
            told["communication_ms_by_kernel"] = _sums(names[communication], durations[communication], self._name_index)
        told["top_kernels_ms"] = _sums(names, durations, self._name_index)
        devices = np.unique(np.array(self._devices)[linked])
        if len(devices) > 1:
            told["devices"] = len(devices)
        if self._host:
            told["host_synchronising_ms"] = round(sum(self._host.values()) / 1e3, 6)
        return told

    def _calls_of(self, kind: str, kinds: Any, names: Any, durations: Any) -> int:
        """Calls of the kernel of a kind that takes longest of all."""
        own = kinds == self._kind_index.get(kind, -1)
        if not own.any():
            return 0
        spent = np.bincount(names[own], weights=durations[own])
        return int((names[own] == spent.argmax()).sum())


def _sums(index: Any, durations: Any, names: dict[str, int]) -> dict[str, float]:
    """Milliseconds by name, the greatest first."""
    sums = np.bincount(index, weights=durations, minlength=len(names)) / 1e3
    ordered = sorted(((name, float(sums[at])) for name, at in names.items() if sums[at] > 0), key=lambda one: -one[1])
    return {name[:120]: round(value, 6) for name, value in ordered[:_TOP]}


def _number(value: Any) -> float | None:
    """A finite number, of text too (older traces quote them)."""
    if isinstance(value, str):
        try:
            value = float(value[:40])
        except ValueError:
            return None
    if not isinstance(value, int | float) or abs(value) > 1e18:
        return None
    return float(value) if value == value else None


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and abs(value) < 2**62 else otherwise


READER = Reader(kind=KIND, form="items", begin=_Gatherer)
