"""Memory over time as PyTorch's profiler exports it (``export_memory_timeline`` to ``.raw.json.gz``): what was held, by category.

An event is ``[nanoseconds, action, bytes, category]``, bytes signed, -1 for what was there before
(torch/profiler/_memory_profiler.py).
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from trilemma.diagnosis.findings import Part
from trilemma.diagnosis.readers import Reader

KIND = "memory-timeline"
_MOST = 5_000_000
_CATEGORIES = (
    "parameters", "optimizer", "inputs", "temporary", "activations", "gradients", "autograd", "unknown",
)  # fmt: skip


class _Gatherer:
    def __init__(self) -> None:
        self._times, self._sizes, self._categories = array("q"), array("q"), array("b")

    def take(self, record: Any, where: str) -> None:
        if where or not isinstance(record, list) or len(record) != 4 or len(self._times) >= _MOST:
            return
        if all(isinstance(one, int) and abs(one) < 2**62 for one in record) and 0 <= record[3] < len(_CATEGORIES):
            self._times.append(record[0])
            self._sizes.append(record[2])
            self._categories.append(record[3])

    def part(self) -> Part | None:
        if not self._times:
            return None
        order = np.argsort(np.array(self._times), kind="stable")
        sizes = np.array(self._sizes, dtype=np.float64)[order]
        categories = np.array(self._categories)[order]
        held = np.cumsum(sizes)
        at = int(held.argmax())
        by_category = np.bincount(categories[: at + 1], weights=sizes[: at + 1], minlength=len(_CATEGORIES))
        facts = {
            "events": len(sizes),
            "peak_bytes": int(held[at]),
            "last_bytes": int(held[-1]),
            "peak_bytes_by_category": {
                name: int(size) for name, size in zip(_CATEGORIES, by_category, strict=True) if size > 0
            },
        }
        return Part(kind=KIND, weight=len(sizes), facts=facts)


READER = Reader(kind=KIND, form="items", begin=_Gatherer)
