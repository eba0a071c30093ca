"""Which target blocks where no plan meets them all, and by how much."""

from __future__ import annotations

import numpy as np

from trilemma.search.table import PlanTable
from trilemma.search.targets import lateness
from trilemma.workloads import Serving

_TAKES = {"ttft": "to the first token", "tpot": "a token"}
#: A target below this many milliseconds may have been meant in seconds.
_SECONDS_MEANT_MS = 60.0


def blocked(table: PlanTable, workload: Serving) -> tuple[str, ...]:
    """A sentence for each target that no plan of ``table`` holds, or one that none holds them together."""
    if not len(table):
        return ()
    late = lateness(table.tpot_s, table.held_ttft_s, workload, table.margin)
    asked = {"ttft": workload.ttft_ms or 0.0, "tpot": workload.tpot_ms or 0.0}
    sentences = []
    for name, factor in late.items():
        least = float(np.min(factor))
        if least <= 1.0:
            continue
        target_ms, at = asked[name], int(np.argmin(factor))
        quickest_ms = float((table.ttft_s if name == "ttft" else table.tpot_s)[at]) * 1e3
        words = f"--{name} {target_ms:g} ms is out of reach: the quickest plan takes {_ms(quickest_ms)} {_TAKES[name]}"
        if quickest_ms <= target_ms:
            words += f", which holds {target_ms:g} ms with less than the chance asked for"
        if target_ms <= _SECONDS_MEANT_MS and name == "ttft":
            words += f"; for {target_ms:g} s give --{name} {target_ms * 1e3:g}"
        sentences.append(words)
    if not sentences and late:
        sentences.append("each target is held by some plan, and no plan holds them together")
    return tuple(sentences)


def _ms(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:,.2f} s" if milliseconds >= 1e3 else f"{milliseconds:,.3g} ms"
