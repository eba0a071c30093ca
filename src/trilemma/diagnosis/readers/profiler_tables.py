"""Tables of NVIDIA's profilers as CSV: ``nsys stats --format csv`` (kernels by time) and ``ncu --csv`` (metrics by kernel)."""

from __future__ import annotations

import csv
from typing import Any

from trilemma.diagnosis.findings import Part
from trilemma.diagnosis.kernels import kind_of
from trilemma.diagnosis.readers import Reader

KIND = "profiler-table"
_MOST = 200_000
_UNITS = {"nsecond": 1e-6, "ns": 1e-6, "usecond": 1e-3, "us": 1e-3, "msecond": 1.0, "ms": 1.0, "second": 1e3}


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._columns: list[str] = []
        self._by_kernel: dict[str, float] = {}
        self._calls = 0
        self._rows = 0
        self._metrics: dict[str, list[float]] = {}
        self._metric_table = False

    def take(self, record: str, where: int) -> None:  # noqa: ARG002 - rows are told by their kernels
        if "Total Time (ns)" in record or ("Kernel Name" in record and "Metric Name" in record):
            self._columns = _cells(record)
            self.greedy, self._metric_table = True, "Metric Name" in record
        elif self.greedy and self._rows < _MOST:
            cells = _cells(record)
            if len(cells) == len(self._columns):
                self._rows += 1
                self._row(dict(zip(self._columns, cells, strict=True)))

    def _row(self, row: dict[str, str]) -> None:
        if not self._metric_table:
            name, total = row.get("Name", row.get("Operation", "")), _number(row.get("Total Time (ns)", ""))
            self._calls += int(_number(row.get("Instances", row.get("Count", row.get("Num Calls", "")))) or 0)
            self._add(name, (total or 0.0) / 1e6)
            return
        name, metric = row.get("Kernel Name", ""), row.get("Metric Name", "")
        value = _number(row.get("Metric Value", ""))
        if value is None:
            return
        if metric in ("Duration", "gpu__time_duration.sum"):
            self._calls += 1
            self._add(name, value * _UNITS.get(row.get("Metric Unit", "nsecond"), 1e-6))
        elif metric in _KEPT and len(self._metrics.setdefault(_KEPT[metric], [])) < _MOST:
            self._metrics[_KEPT[metric]].append(value)

    def _add(self, name: str, milliseconds: float) -> None:
        if name in self._by_kernel or len(self._by_kernel) < 5000:
            self._by_kernel[name] = self._by_kernel.get(name, 0.0) + milliseconds

    def part(self) -> Part | None:
        if not self._by_kernel:
            return None
        kinds: dict[str, float] = {}
        for name, milliseconds in self._by_kernel.items():
            kind = "copy" if "memcpy" in name.lower() else kind_of("kernel", name)
            kinds[kind] = kinds.get(kind, 0.0) + milliseconds
        ordered = sorted(self._by_kernel.items(), key=lambda one: -one[1])[:20]
        facts: dict[str, Any] = {
            "kernels": len(self._by_kernel), "calls": self._calls, "kernel_ms": round(sum(self._by_kernel.values()), 6),
            "kernel_ms_by_kind": {name: round(value, 6) for name, value in sorted(kinds.items(), key=lambda one: -one[1])},
            "top_kernels_ms": {name[:120]: round(value, 6) for name, value in ordered},
        }  # fmt: skip
        facts |= {
            f"mean_{name}": round(sum(values) / len(values), 3) for name, values in self._metrics.items() if values
        }
        return Part(kind=KIND, weight=3 * self._rows, facts=facts)


#: Metrics of ncu's speed-of-light section, by the names that its pages and its raw counters use.
_KEPT = {
    "Memory Throughput": "memory_throughput_percent", "DRAM Throughput": "dram_throughput_percent",
    "Compute (SM) Throughput": "compute_throughput_percent", "Achieved Occupancy": "achieved_occupancy_percent",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_throughput_percent",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute_throughput_percent",
}  # fmt: skip


def _cells(record: str) -> list[str]:
    try:
        return next(csv.reader([record[:20_000]]), [])
    except csv.Error:
        return []


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("Total Time (ns)", "Metric Name"))
