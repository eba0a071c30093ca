"""Which plans miss the latency targets, told by the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.intervals import Interval
from trilemma.workloads import Serving


@dataclass(frozen=True, kw_only=True, slots=True)
class Margin:
    """By what latencies are multiplied before they are held against a target, numbers or one entry per plan; 1 takes the
    central value. ``confidence`` is the chance with which a target then holds, None where none is asked for."""

    ttft: Any = 1.0
    tpot: Any = 1.0
    confidence: float | None = None


def margin_of(spread: Mapping[str, tuple[float, float]], confidence: float) -> Margin:
    """The margin with which a latency of the bounds ``spread`` (see `speed_spread`) holds a target with ``confidence``."""

    def factor(name: str) -> float:
        low, high = spread[name]
        return Interval(value=min(max(1.0, low), high), low=low, high=high).at_chance(confidence)

    return Margin(ttft=factor("ttft"), tpot=factor("tpot"), confidence=confidence)


def misses(
    tpot_s: NDArray[np.float64], ttft_s: NDArray[np.float64], workload: Serving, margin: Margin
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """(why, which) for each target of ``workload``; a plan counts for the first that it misses."""
    left = np.ones(len(tpot_s), dtype=bool)
    sure = "" if margin.confidence is None else f", or holds it with a chance below {margin.confidence:g}"
    late = _late(tpot_s, ttft_s, margin)
    for name, target in (("tpot", workload.tpot_ms), ("ttft", workload.ttft_ms)):
        if target is not None:
            missed = left & (late[name] * 1e3 > target)
            left &= ~missed
            yield f"misses --{name} {target:g} ms{sure}", missed


def overshoot(
    tpot_s: NDArray[np.float64], ttft_s: NDArray[np.float64], workload: Serving, margin: Margin
) -> NDArray[np.float64]:
    """By what factor each plan is beyond the target that it misses most."""
    late = _late(tpot_s, ttft_s, margin)
    return np.maximum(
        late["tpot"] * 1e3 / (workload.tpot_ms or np.inf), late["ttft"] * 1e3 / (workload.ttft_ms or np.inf)
    )


def _late(tpot_s: NDArray[np.float64], ttft_s: NDArray[np.float64], margin: Margin) -> dict[str, NDArray[np.float64]]:
    return {"tpot": tpot_s * margin.tpot, "ttft": ttft_s * margin.ttft}
