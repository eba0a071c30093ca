"""Step times of one's own deployment: two factors, of decode steps and of prompts, from requests that it answered.

The requests are simulated as they came; the factors are those under which the first of them take, in the mean, the time to the
first token and the time a token that were measured. The rest of them says how far that holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.simulation.serving.deployment import SimulatedPlan
from trilemma.simulation.serving.measured_requests import MeasuredRequest
from trilemma.simulation.serving.simulation import SimulationRules, run_once
from trilemma.simulation.serving.traffic import ServedRequest

#: Requests whose means are met at most; never more than half of those that were measured, so that others are left to judge by.
_MOST_MET = 100
_FEWEST = 8
#: Standard deviation of a factor's logarithm before anything was measured, and of a mean's.
_FACTOR, _READING = 0.3, 0.01
#: Steps of a derivative (by turns: what is simulated moves in jumps), the nearest that means are met, and turns.
_STEPS, _NEAR, _TURNS = (0.2, 0.1, 0.05), 0.003, 18
_LARGEST_TURN = 0.3
#: Rows up to which a step is one of decode alone, where the engine's limit of sequences is no lower.
_DECODE_ROWS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFactors:
    """How many times as long as predicted steps take: those of up to ``decode_rows`` rows ``decode``, of ``prompt_rows`` and more
    ``prompt``; between, as the logarithm of the rows goes."""

    decode: float
    prompt: float
    decode_rows: float
    prompt_rows: float

    def of_rows(self, rows: float) -> float:
        if self.prompt_rows <= self.decode_rows:
            return self.decode
        share = math.log(max(rows, 1.0) / self.decode_rows) / math.log(self.prompt_rows / self.decode_rows)
        return float(self.decode * (self.prompt / self.decode) ** min(max(share, 0.0), 1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratedSteps:
    """``plan`` under ``factors`` that ``met`` requests told; ``off`` is what the whole times of the ``left`` others are off by
    in the mean (simulated over measured, less one)."""

    plan: SimulatedPlan
    factors: StepFactors
    met: int
    left: int
    off: float

    @property
    def words(self) -> dict[str, float]:
        """As a document tells it."""
        factors = self.factors
        return {
            "decode_factor": round(factors.decode, 4), "prompt_factor": round(factors.prompt, 4),
            "requests_met": self.met, "requests_left_out": self.left, "left_out_error": round(self.off, 4),
        }  # fmt: skip


def calibrated(plan: SimulatedPlan, measured: Sequence[MeasuredRequest]) -> CalibratedSteps:
    """``plan`` with the step times that ``measured`` requests say. Raises `InputError` for fewer than eight, for pools, and for
    times that no factors explain."""
    if plan.prefill is not None:
        raise InputError(
            "`measured` calibrates engines that prefill and decode alike; leave out `prefill` and `decode`"
        )
    if len(measured) < _FEWEST:
        raise InputError(f"`measured` holds {len(measured)} requests that were answered; give at least {_FEWEST}")
    met = min(_MOST_MET, len(measured) // 2)
    wanted = np.log(_means(measured[:met]))
    logarithms = np.zeros(2)

    def away(at: Any) -> Any:
        return np.log(_means(_simulated(_under(plan, at), measured)[:met])) - wanted

    here, least = logarithms, np.inf
    for at in range(_TURNS):
        off = away(logarithms)
        cost = float(np.sum((off / _READING) ** 2) + np.sum((logarithms / _FACTOR) ** 2))
        if cost < least:
            here, least = logarithms, cost
        if np.max(np.abs(off)) < _NEAR:
            break
        wide = _STEPS[at % len(_STEPS)]
        slope = np.stack([(away(logarithms + step) - off) / wide for step in wide * np.eye(2)], axis=1)
        table = np.vstack([slope / _READING, np.eye(2) / _FACTOR])
        turn = np.linalg.lstsq(table, np.r_[-off / _READING, -logarithms / _FACTOR], rcond=None)[0]
        logarithms = logarithms + np.clip(turn, -_LARGEST_TURN, _LARGEST_TURN)
    logarithms = here
    found = _under(plan, logarithms)
    again = _simulated(found, measured)
    rest = slice(met, None)
    off = _whole_s(again[rest]) / _whole_s(measured[rest]) - 1
    return CalibratedSteps(plan=found, factors=_factors(plan, logarithms), met=met, left=len(measured) - met, off=off)


def _factors(plan: SimulatedPlan, logarithms: Any) -> StepFactors:
    decode, prompt = (float(math.exp(one)) for one in logarithms)
    rows = plan.most_running if plan.most_running < plan.tokens else _DECODE_ROWS
    return StepFactors(decode=decode, prompt=prompt, decode_rows=float(rows), prompt_rows=float(plan.tokens))


def _under(plan: SimulatedPlan, logarithms: Any) -> SimulatedPlan:
    return replace(plan, times=plan.times.calibrated(_factors(plan, logarithms).of_rows))


def _simulated(plan: SimulatedPlan, measured: Sequence[MeasuredRequest]) -> list[MeasuredRequest]:
    """The same requests as ``plan`` answers them, in the order in which they came."""
    ended: list[tuple[int, MeasuredRequest]] = []

    def note(request: ServedRequest) -> None:
        came_s = request.arrival.arrival_s
        times = MeasuredRequest(request.arrival, request.first_s - came_s, request.finish_s - came_s)
        ended.append((request.index, times))

    run_once(plan, (one.arrival for one in measured), SimulationRules(), note)
    if len(ended) < len(measured):
        raise InputError(
            f"`measured` holds {len(measured) - len(ended)} answered requests that this plan refuses; check `context`"
        )
    return [one for _, one in sorted(ended, key=lambda one: one[0])]


def _means(of: Sequence[MeasuredRequest]) -> Any:
    """Mean seconds to the first token, and of a token after it."""
    first = float(np.mean([one.first_s for one in of]))
    tokens = [(one.whole_s - one.first_s) / (one.arrival.osl - 1) for one in of if one.arrival.osl > 1]
    if first <= 0 or not tokens or float(np.mean(tokens)) <= 0:
        raise InputError("`measured` has no time between tokens or none to the first; give requests of several tokens")
    return np.array([first, float(np.mean(tokens))])


def _whole_s(of: Sequence[MeasuredRequest]) -> float:
    return float(np.mean([one.whole_s for one in of]))
