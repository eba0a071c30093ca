"""Which plans miss the latency targets, told by the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.intervals import NINETY, Interval, normal_deviations
from trilemma.workloads import Serving

#: The chance with which each target holds unless another is asked for: a plan more likely to miss than not is no advice.
EVEN_ODDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Margin:
    """By what latencies are multiplied before they are held against a target, numbers or one entry per plan. ``confidence`` is
    the chance with which a target then holds, None where there is none to hold."""

    ttft: Any = 1.0
    tpot: Any = 1.0
    confidence: float | None = None

    def unsteady(self, seconds: Any, waits: tuple[Any, Any]) -> Any:
        """``seconds``, of which a wait may be from ``waits`` less to more, as what is held against a target in their place.

        The bounds of a latency are those of its class times the least and the most of it; the limit that it keeps with
        ``confidence`` is then that of the class times this (`Interval.at_chance`).
        """
        deviations = normal_deviations(self.confidence or EVEN_ODDS)
        bound = seconds + waits[0 if deviations < 0 else 1]
        return seconds * np.maximum(bound / seconds, 1e-12) ** (abs(deviations) / NINETY)


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
    late = _late(tpot_s, ttft_s, margin)
    for name, target in (("tpot", workload.tpot_ms), ("ttft", workload.ttft_ms)):
        if target is not None:
            missed = left & (late[name] * 1e3 > target)
            left &= ~missed
            yield missed_words(name, target, margin.confidence), missed


def missed_words(name: str, target_ms: float, confidence: float | None) -> str:
    """Why a plan loses that does not hold a target with the chance asked for."""
    sure = "" if confidence in (None, EVEN_ODDS) else f", or holds it with a chance below {confidence:g}"
    return f"misses --{name} {target_ms:g} ms{sure}"


def lateness(
    tpot_s: NDArray[np.float64], ttft_s: NDArray[np.float64], workload: Serving, margin: Margin
) -> dict[str, NDArray[np.float64]]:
    """By what factor each plan is beyond each target that there is, "ttft" and "tpot"; at most 1 where it holds."""
    late, asked = _late(tpot_s, ttft_s, margin), {"tpot": workload.tpot_ms, "ttft": workload.ttft_ms}
    return {name: late[name] * 1e3 / target for name, target in asked.items() if target is not None}


def overshoot(
    tpot_s: NDArray[np.float64], ttft_s: NDArray[np.float64], workload: Serving, margin: Margin
) -> NDArray[np.float64]:
    """By what factor each plan is beyond the target that it misses most."""
    late = lateness(tpot_s, ttft_s, workload, margin).values()
    beyond: NDArray[np.float64] = np.maximum.reduce([np.zeros(len(tpot_s)), *late])
    return beyond


def _late(tpot_s: NDArray[np.float64], ttft_s: NDArray[np.float64], margin: Margin) -> dict[str, NDArray[np.float64]]:
    return {"tpot": tpot_s * margin.tpot, "ttft": ttft_s * margin.ttft}
