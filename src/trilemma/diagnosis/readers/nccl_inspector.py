"""Records of NCCL's inspector plug-in (JSON lines): size, time and bandwidths of single collectives by rank.

Keys: NVIDIA/nccl ext-profiler/inspector (``header``, ``metadata``, ``coll_perf``).
"""

from __future__ import annotations

from array import array
from statistics import median
from typing import Any, TypeGuard

from trilemma.diagnosis.findings import Part, text_of
from trilemma.diagnosis.readers import Reader

KIND = "nccl-inspector"
_MOST = 500_000
_MOST_KINDS = 500


class _Gatherer:
    def __init__(self) -> None:
        self._by_kind: dict[str, dict[str, array[float]]] = {}
        self._header: dict[str, Any] = {}
        self._records = 0

    def take(self, record: Any, where: str) -> None:
        if where == "header" and isinstance(record, dict) and "n_ranks" in record:
            self._header = {
                name: record[name] for name in ("rank", "n_ranks", "nnodes") if isinstance(record.get(name), int)
            }
        elif where == "coll_perf" and isinstance(record, dict) and self._records < _MOST:
            size, time = record.get("coll_msg_size_bytes"), record.get("coll_exec_time_us")
            if not _well(size) or not _well(time):
                return
            self._records += 1
            key = f"{text_of(record.get('coll'), 40)} of {size} bytes"
            if key not in self._by_kind and len(self._by_kind) >= _MOST_KINDS:
                return
            kept = self._by_kind.setdefault(key, {"time_us": array("d"), "busbw_gb_s": array("d")})
            kept["time_us"].append(float(time))
            bandwidth = record.get("coll_busbw_gbs")
            if _well(bandwidth):
                kept["busbw_gb_s"].append(float(bandwidth))

    def part(self) -> Part | None:
        if not self._records:
            return None
        collectives = {
            key: {"count": len(kept["time_us"]), **{name: round(median(values), 6) for name, values in kept.items() if values},
                  "slowest_us": round(max(kept["time_us"]), 6)}
            for key, kept in self._by_kind.items()
        }  # fmt: skip
        ordered = dict(sorted(collectives.items(), key=lambda one: -one[1]["count"] * one[1]["time_us"])[:40])
        return Part(
            kind=KIND,
            weight=2 * self._records,
            facts={**self._header, "records": self._records, "collectives": ordered},
        )


def _well(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18


READER = Reader(kind=KIND, form="items", begin=_Gatherer)
