"""Predictions that start from measured points of the same deployment: what was off there is off beside them too.

The logarithm of measured over predicted is taken for a random function of the load: a constant of the deployment, and a part
that wanders with the logarithms of requests in flight and lengths (an Ornstein-Uhlenbeck process). Its mean between and around
the points corrects the prediction, its deviation bounds it; far from all points the physics stand alone (Rasmussen and Williams
2006, 2.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.quantities import Array
from trilemma.timing.serving_step import ServingSpeed

#: One load: prompt and output tokens, requests in flight.
AnchorLoad = tuple[float, float, float]


#: Of requests in flight that are thought of as the next load: so many, up to so many times the most that were measured.
_TRIED, _BEYOND = 16, 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NextLoad:
    """The run that would tell most: its ``load``, the half-width of the 90 % range there now, and with it (shares)."""

    load: AnchorLoad
    half_width: float
    then: float

    def __str__(self) -> str:
        isl, osl, count = self.load
        return (
            f"measure {isl:,.0f}/{osl:,.0f} at {count:,.0f} at once next: the range there is ± {self.half_width:.0%} of a token's"
            f" time, ± {self.then:.0%} then"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchors:
    """Measured points of one deployment: by figure ("tpot", "ttft") loads and logarithms of measured over predicted.

    They hold for the deployment ``key`` (engine, card, precision) as it is ``served`` (`serving_terms.served_as`).
    """

    key: str
    served: str
    points: Mapping[str, tuple[tuple[AnchorLoad, float], ...]]

    def next_load(self, figure: str = "tpot", *, most: float = np.inf) -> NextLoad | None:
        """The load, of the lengths that were measured and 1 to ``most`` requests in flight (at most four times those that were),
        whose run would narrow the ranges of all of them most; None without points.

        Source: Rasmussen and Williams 2006, equation 2.26 (the variance does not depend on what is found).
        """
        loads = [load for load, _ in self.points.get(figure, ())]
        if not loads:
            return None
        largest = max(1.0, min(most, _BEYOND * max(load[2] for load in loads)))
        counts = np.unique(np.round(np.geomspace(1.0, largest, _TRIED)))
        tried = [(*shape, float(count)) for shape in sorted({load[:2] for load in loads}) for count in counts]
        off = [0.0] * (len(loads) + 1)
        _, now = corrections(loads, off[1:], tried, figure)
        left = [float(corrections([*loads, one], off, tried, figure)[1].mean()) for one in tried]
        best = int(np.argmin(left))
        after = corrections([*loads, tried[best]], off, [tried[best]], figure)[1][0]
        return NextLoad(load=tried[best], half_width=float(np.expm1(now[best])), then=float(np.expm1(after)))

    def correction(self, figure: str, load: AnchorLoad) -> tuple[float, float] | None:
        """(factor on the predicted ``figure`` at ``load``, half-width of the 90 % range as a logarithm); None without points.

        Numbers without a unit. Source: ``data/coefficients/serving_anchors.toml``.
        """
        told = self.points.get(figure, ())
        if not told:
            return None
        mean, half = corrections([one for one, _ in told], [value for _, value in told], [load], figure)
        return float(np.exp(mean[0])), float(half[0])


def corrections(
    loads: Sequence[AnchorLoad], off: Sequence[float], asked: Sequence[AnchorLoad], figure: str
) -> tuple[Array, Array]:
    """(means, half-widths of 90 % ranges) of the logarithm of measured over predicted at the loads ``asked``, (asked,) each,
    given that it was ``off`` at ``loads``. Source: Rasmussen and Williams 2006, equations 2.25 and 2.26."""
    numbers = anchor_numbers()[figure]
    nugget = numbers["repeat"] ** 2
    seen, wanted = np.log(np.asarray(loads, dtype=float)), np.log(np.asarray(asked, dtype=float))
    known = _covariance(seen, seen, numbers) + nugget * np.eye(len(seen))
    across = _covariance(seen, wanted, numbers)
    weights = np.linalg.solve(known, across)
    mean = weights.T @ np.asarray(off, dtype=float)
    variance = numbers["constant"] ** 2 + numbers["wandering"] ** 2 + nugget - np.sum(across * weights, axis=0)
    return mean, numbers["deviations"] * np.sqrt(np.maximum(variance, nugget))


def _covariance(one: Array, two: Array, numbers: Mapping[str, float]) -> Array:
    apart = np.abs(one[:, None, :] - two[None, :, :]).sum(axis=-1)
    decay: Array = np.exp(-apart / numbers["length"])
    return numbers["constant"] ** 2 + numbers["wandering"] ** 2 * decay


@cache
def anchor_numbers() -> Mapping[str, Any]:
    """How far runs of one deployment wander from what is said of it, by figure, numbers with their source
    (``data/coefficients/serving_anchors.toml``)."""
    return read_data("coefficients/serving_anchors.toml")


def anchored(speed: ServingSpeed, *, tpot: float, ttft: float) -> ServingSpeed:
    """``speed`` with the times of tokens and of first tokens multiplied, and what follows from them: requests end sooner or
    later, so that rates change as the time of a request does (Little 1961)."""
    ttft_s, tpot_s = np.asarray(speed.ttft_s) * ttft, np.asarray(speed.tpot_s) * tpot
    first_s, decode_s = np.asarray(speed.ttft_s), np.asarray(speed.request_s) - np.asarray(speed.ttft_s)
    request_s = ttft_s + decode_s * tpot
    rate = (first_s + decode_s) / request_s
    return replace(
        speed, ttft_s=ttft_s, tpot_s=tpot_s, step_s=speed.step_s * tpot, request_s=request_s,
        ttft_p50_s=speed.ttft_p50_s * ttft, ttft_p99_s=speed.ttft_p99_s * ttft, gap_p50_s=speed.gap_p50_s * tpot,
        gap_p99_s=speed.gap_p99_s * tpot, request_p50_s=speed.ttft_p50_s * ttft + decode_s * tpot,
        request_p99_s=speed.ttft_p99_s * ttft + decode_s * tpot, tokens_per_s_per_user=1.0 / tpot_s,
        output_tokens_per_s=speed.output_tokens_per_s * rate, tokens_per_s_per_gpu=speed.tokens_per_s_per_gpu * rate,
        mfu=speed.mfu * rate, lines={name: seconds * tpot for name, seconds in speed.lines.items()},
        resources={name: seconds * tpot for name, seconds in speed.resources.items()},
        first_lines={name: seconds * ttft for name, seconds in speed.first_lines.items()},
        slot_wait_s=(speed.slot_wait_s[0] * ttft, speed.slot_wait_s[1] * ttft),
    )  # fmt: skip
