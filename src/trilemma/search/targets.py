"""Which plans miss the latency targets, told by the target."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trilemma.workloads import Serving


def misses(
    tpot_s: NDArray[np.float64], ttft_s: NDArray[np.float64], workload: Serving
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """(why, which) for each target of ``workload``; a plan counts for the first that it misses."""
    left = np.ones(len(tpot_s), dtype=bool)
    for name, seconds, target in (("tpot", tpot_s, workload.tpot_ms), ("ttft", ttft_s, workload.ttft_ms)):
        if target is not None:
            missed = left & (seconds * 1e3 > target)
            left &= ~missed
            yield f"misses --{name} {target:g} ms", missed


def overshoot(tpot_s: NDArray[np.float64], ttft_s: NDArray[np.float64], workload: Serving) -> NDArray[np.float64]:
    """By what factor each plan is beyond the target that it misses most."""
    return np.maximum(tpot_s * 1e3 / (workload.tpot_ms or np.inf), ttft_s * 1e3 / (workload.ttft_ms or np.inf))
