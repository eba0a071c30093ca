"""Output of nccl-tests and rccl-tests: time and bandwidths by size, the GPUs of the header, wrong results.

Columns: NVIDIA/nccl-tests src/common.cu; before 2.11 without ``root``. A launcher may put the rank before each line.
"""

from __future__ import annotations

import re
from typing import Any

from trilemma.diagnosis.findings import Event, Part
from trilemma.diagnosis.readers import Reader

KIND = "nccl-tests"
_MOST_ROWS = 4096
_MOST_RANKS = 65_536
_N = r"([0-9.]{1,12}|N/A)"
_ROW = re.compile(
    rf"^\s*(?:\S{{1,40}}[:>]\s*)?(\d{{1,16}})\s+(\d{{1,16}})\s+([a-z]\w{{1,12}})\s+(\w{{1,12}})\s+(?:-?\d{{1,6}}\s+)?{_N}\s+{_N}\s+{_N}"
    rf"\s+(\S{{1,12}})(?:\s+{_N}\s+{_N}\s+{_N}\s+(\S{{1,12}}))?"
)
_RANK = re.compile(r"Rank\s+(\d{1,6})\s.{0,80}?\bon\s+(\S{1,120})\s+device\s+(\d{1,4})\s+\[[^\]]{1,20}\]\s*(.{2,80})")


class _Gatherer:
    def __init__(self) -> None:
        self.greedy = False
        self._rows: list[Event] = []
        self._gpus: set[str] = set()
        self._hosts: set[str] = set()
        self._ranks: set[int] = set()

    def take(self, record: str, where: int) -> None:
        if "busbw" in record:
            self.greedy = True
        elif "Rank" in record and (found := _RANK.search(record)) and len(self._ranks) < _MOST_RANKS:
            self._ranks.add(int(found[1]))
            self._hosts.add(found[2])
            self._gpus.add(found[4].strip())
        elif self.greedy and len(self._rows) < _MOST_ROWS and (found := _ROW.match(record)):
            self._row(found, where)

    def _row(self, found: re.Match[str], line: int) -> None:
        values: dict[str, Any] = {"bytes": int(found[1]), "type": found[3], "operation": found[4]}
        for start, name in ((5, ""), (9, "in_place_")):
            numbers = [_number(found[at]) for at in range(start, start + 3)]
            if None not in numbers:
                values |= dict(zip((f"{name}time_us", f"{name}algbw_gb_s", f"{name}busbw_gb_s"), numbers, strict=True))
            wrong = found[start + 3]
            values["wrong"] = values.get("wrong", 0) + (int(wrong) if wrong and wrong.isdigit() else 0)
        if "busbw_gb_s" in values:
            self._rows.append(Event(name="size", line=line, values=values))

    def part(self) -> Part | None:
        if not self._rows:
            return None
        largest = max(self._rows, key=lambda row: int(row.values["bytes"])).values
        smallest = min(self._rows, key=lambda row: int(row.values["bytes"])).values
        collective, ranks = _collective(largest)
        facts: dict[str, Any] = {
            "sizes": len(self._rows),
            "largest_bytes": largest["bytes"],
            "large_message_busbw_gb_s": largest["busbw_gb_s"],
            "large_message_algbw_gb_s": largest["algbw_gb_s"],
            "peak_busbw_gb_s": max(
                row.values[name]
                for row in self._rows
                for name in ("busbw_gb_s", "in_place_busbw_gb_s")
                if name in row.values
            ),
            "smallest_bytes": smallest["bytes"],
            "small_message_time_us": smallest["time_us"],
            "collective": collective,
            "wrong_results": sum(row.values["wrong"] for row in self._rows),
        }
        if self._ranks or ranks:
            facts["ranks"] = len(self._ranks) or ranks
        if self._hosts:
            facts |= {"nodes": len(self._hosts), "gpus": sorted(self._gpus)[:8]}
        return Part(kind=KIND, weight=10 * len(self._rows), facts=facts, events=tuple(self._rows))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _collective(row: Any) -> tuple[str, int | None]:
    """Which collective, and over how many ranks, by bus over algorithm bandwidth: 2(n - 1)/n or (n - 1)/n (PERFORMANCE.md)."""
    ratio = row["busbw_gb_s"] / row["algbw_gb_s"] if row["algbw_gb_s"] else 0.0
    summed = row["operation"] != "none"
    if 1.01 < ratio < 1.9999:
        return "all-reduce", round(2 / (2 - ratio))
    if 0.4 < ratio < 0.9995:
        return "reduce-scatter" if summed else "all-gather or all-to-all", round(1 / (1 - ratio))
    return ("all-reduce of two, or reduce" if summed else "broadcast or send and receive"), None


READER = Reader(
    kind=KIND, form="lines", begin=_Gatherer, marks=("busbw", "device ", "Avg bus bandwidth", "Out of bounds values")
)
