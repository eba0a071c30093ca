"""Bandwidth of single collectives of a trace, by the arguments that PyTorch's profiler writes beside NCCL's kernels.

Algorithm bandwidth is bytes over time, bus bandwidth what each rank's link carried (NVIDIA/nccl-tests doc/PERFORMANCE.md). The
time of a kernel holds the wait for slower ranks: of many calls of one size the shortest waited least.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from statistics import median
from typing import Any

from trilemma.diagnosis.findings import text_of

_MOST_KINDS = 500
_MOST_CALLS = 500_000
_SHOWN = 24
_BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "BFloat16": 2, "Half": 2, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
_TWICE, _ONCE = ("allreduce",), ("allgather", "reduce_scatter", "all_to_all", "alltoall", "reducescatter")


class CollectiveTimes:
    """Gathers calls by kind, ranks and size."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, int, int], array[float]] = {}
        self._count = 0

    def take(self, arguments: Mapping[str, Any], duration_us: float) -> None:
        """One kernel of a collective, with its arguments."""
        name = text_of(arguments.get("Collective name"), 40)
        sent, got = arguments.get("In msg nelems"), arguments.get("Out msg nelems")
        ranks, size = arguments.get("Group size"), _BYTES.get(text_of(arguments.get("dtype"), 20))
        if not name or size is None or self._count >= _MOST_CALLS or duration_us <= 0:
            return
        if not all(isinstance(one, int) and 0 < one < 2**50 for one in (sent, got, ranks)):
            return
        elements = max(sent, got)  # type: ignore[type-var]
        key = name, int(ranks), int(elements) * size  # type: ignore[arg-type]
        if key in self._calls or len(self._calls) < _MOST_KINDS:
            self._calls.setdefault(key, array("d")).append(duration_us)
            self._count += 1

    def facts(self) -> dict[str, Any]:
        """The kinds that take longest: calls, median and shortest time, bandwidths at the shortest."""
        rows = sorted(self._calls.items(), key=lambda one: -sum(one[1]))[:_SHOWN]
        return {
            f"{name} of {size} bytes over {ranks} ranks": {
                "calls": len(times), "median_us": round(median(times), 3), "shortest_us": round(min(times), 3),
                "algbw_gb_s": round(size / min(times) / 1e3, 4),
                "busbw_gb_s": round(size / min(times) / 1e3 * _factor(name, ranks), 4),
                "median_busbw_gb_s": round(size / median(times) / 1e3 * _factor(name, ranks), 4),
            }
            for (name, ranks, size), times in rows
        }  # fmt: skip


def _factor(name: str, ranks: int) -> float:
    plain = name.lower().lstrip("_")
    if plain.startswith(_TWICE):
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if plain.startswith(_ONCE) else 1.0
