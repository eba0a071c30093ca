"""``nvidia-smi dmon``: samples of power, clocks, temperature and utilisation of each GPU."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from itertools import pairwise
from math import nan
from statistics import median
from typing import Any

from trilemma.diagnosis.derating import SERIES, WORKS, fallen_clocks
from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "nvidia-smi-dmon"
_MOST = 200_000
_MOST_GPUS = 1024
#: A GPU waits below this utilisation, in percent; fewer samples than this show no saw-tooth.
_WAITS = 15
_FEWEST = 12
_COLUMNS = {
    "pwr": "power_w", "sm": "utilisation_percent", "mem": "memory_utilisation_percent", "pclk": "sm_clock_mhz",
    "gtemp": "temperature_c", "fb": "memory_used_mib", "pviol": "power_violation_percent", "tviol": "thermal_violation",
    "rxpci": "pcie_in_mb_s", "txpci": "pcie_out_mb_s", "sbecc": "single_bit_errors", "dbecc": "double_bit_errors",
}  # fmt: skip


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._columns: list[str] = []
        self._samples: dict[str, dict[str, array[float]]] = {}
        self._rows = 0
        self._first = 0
        self._series: dict[str, dict[str, array[float]]] = {}

    def take(self, record: str, where: int) -> None:
        if record.startswith("#"):
            if re.match(r"#\s*gpu\s", record) and " " in record.strip():
                self._columns = record.lstrip("# ").split()
                self.greedy = True
            return
        cells = record.split()
        if not self.greedy or len(cells) != len(self._columns) or self._rows >= _MOST or not cells[0].isdigit():
            return
        if cells[0] not in self._samples and len(self._samples) >= _MOST_GPUS:
            return
        self._rows += 1
        self._first = self._first or where
        kept = self._samples.setdefault(cells[0], {})
        told = dict.fromkeys(SERIES, nan) | {"line": float(where)}
        for name, cell in zip(self._columns, cells, strict=True):
            fact = _COLUMNS.get(name)
            if fact is not None and (found := re.match(r"\d{1,9}(?:\.\d{1,6})?$", cell)):
                kept.setdefault(fact, array("d")).append(float(found[0]))
                told |= {fact: float(found[0])} if fact in told else {}
        series = self._series.setdefault(cells[0], {name: array("d") for name in told})
        for name, value in told.items():
            series[name].append(value)

    def part(self) -> Part | None:
        if not self._rows:
            return None
        facts: dict[str, Any] = {"gpus": len(self._samples), "samples": self._rows}
        events = []
        for gpu, kept in self._samples.items():
            medians = {f"median_{name}": round(median(values), 3) for name, values in kept.items() if values}
            most = {f"most_{name}": max(values) for name, values in kept.items() if values}
            swings = _swings(kept.get("utilisation_percent", ()))
            fallen = fallen_clocks(self._series[gpu], works=WORKS)
            told = {"gpu": gpu, **medians, **most, **swings, **fallen}
            events.append(Event(name="samples", line=self._first, values=told))
        for name in sorted({key for one in events for key in one.values if key.startswith("median_")}):
            facts[name] = round(median([one.values[name] for one in events if name in one.values]), 3)
        return Part(kind=KIND, weight=2 * self._rows, facts=facts, events=tuple(events))


def _swings(busy: Sequence[float]) -> dict[str, float]:
    """How often utilisation goes from work to waiting, and which share of the samples is either."""
    if len(busy) < _FEWEST:
        return {}
    states = [value >= WORKS for value in busy if value >= WORKS or value <= _WAITS]
    falls = sum(before and not after for before, after in pairwise(states))
    return {"waiting_share": sum(value <= _WAITS for value in busy) / len(busy),
            "working_share": sum(value >= WORKS for value in busy) / len(busy), "falls": falls}  # fmt: skip


READER = Reader(kind=KIND, form="lines", begin=_Gatherer, marks=("# gpu", "#gpu"))
