"""P50 and P99 of what users see: in a closed loop, and where requests arrive on their own and everybody waits for the crowd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.quantities import Numbers
from trilemma.timing.queueing import arrivals_ahead_percentiles_s, percentiles_s, token_gap_percentiles_s
from trilemma.timing.serving_cycle import Cycle, ReplicaLoad

#: Standard deviations of a normal distribution at its 99th percentile.
_P99 = 2.326
#: Overlaps of requests of one length fade along a line over its stay: an exponential that fades in 1 / 1.3 of it keeps as much.
_FADES = 1.3
#: The largest share that counts as carried, and prompts of one step that are looked at.
_MOST_BUSY, _MOST_PROMPTS = 0.95, 48


@dataclass(frozen=True, kw_only=True, slots=True)
class Tails:
    """Seconds at P50 and P99 of the first token, of the gap between two tokens and of the whole request; numbers or arrays."""

    ttft_p50_s: Any
    ttft_p99_s: Any
    gap_p50_s: Any
    gap_p99_s: Any
    request_p50_s: Any
    request_p99_s: Any


def tails_at_rate(
    load: ReplicaLoad, cycle: Cycle, *, rate: Numbers, each_s: Numbers, step_s: Numbers, growing: Numbers
) -> Tails:
    """The percentiles of ``load`` where ``rate`` requests a second arrive at one replica as Poisson says; a prompt takes
    ``each_s`` and a step ``step_s``, whose length grows with the sequences in it by the power ``growing`` (0: not at all).

    - The first token waits for prompts that came before (`arrivals_ahead_percentiles_s`), and where more are there at the 99th
      percentile than run at once, for a slot.
    - Tokens after it take as long as the crowd during the stay makes them (`crowd_deviations`): a lognormal with that deviation
      and the mean of all.
    - A gap between tokens has the prompts that arrive within it, of which the Poisson law says how many.

    Numbers or arrays (plans,). Source: laws of the functions named; excesses of independent causes add as squares.
    """
    prefilling = np.minimum(np.asarray(rate, dtype=float) * cycle.mixed_s, _MOST_BUSY)
    flight, stay = crowd_deviations(load.running, growing=growing, prefilling=prefilling)
    ahead_p50_s, ahead_p99_s = arrivals_ahead_percentiles_s(rate, each_s=each_s, step_s=step_s)
    sure_s = cycle.first_s - cycle.bunched_s
    beyond = np.maximum(load.running * (1 + _P99 * flight) - load.admission.holds, 0.0)
    ttft_p50_s, ttft_p99_s = sure_s + ahead_p50_s, sure_s + ahead_p99_s + beyond / load.admission.holds * cycle.cycle_s
    spread = np.sqrt(np.log1p(stay**2))
    decode_p50_s = cycle.decode_s * np.exp(-(spread**2) / 2)
    slower_s = decode_p50_s * np.expm1(_P99 * spread)
    room = np.maximum(load.prefills_room, 1.0)
    prompts_p50, prompts_p99 = (
        np.minimum(poisson_percentile(rate * cycle.tpot_s, share), room) for share in (0.5, 0.99)
    )
    crowded_s = cycle.bare_s * growing * _P99 * flight
    return Tails(
        ttft_p50_s=ttft_p50_s,
        ttft_p99_s=ttft_p99_s,
        gap_p50_s=cycle.bare_s + prompts_p50 * cycle.mixed_s,
        gap_p99_s=cycle.bare_s + np.hypot(prompts_p99 * cycle.mixed_s, crowded_s),
        request_p50_s=ttft_p50_s + decode_p50_s,
        request_p99_s=ttft_p50_s + decode_p50_s + np.hypot(slower_s, ttft_p99_s - ttft_p50_s),
    )


def tails_of_loop(load: ReplicaLoad, cycle: Cycle, waited_s: Numbers) -> Tails:
    """The percentiles of a closed loop: waits, ``waited_s`` for a slot among them, are exponential about their mean, and a gap
    has a pass of prompts of others or none.

    Numbers or arrays (plans,). Source: `percentiles_s` and `token_gap_percentiles_s`.
    """
    ttft_p50_s, ttft_p99_s = percentiles_s(cycle.first_s - cycle.bunched_s, cycle.bunched_s + waited_s)
    passes, pass_s = load.prefills_a_token / load.together, cycle.mixed_s * load.together
    gap_p50_s, gap_p99_s = token_gap_percentiles_s(cycle.bare_s, pass_s, passes)
    return Tails(
        ttft_p50_s=ttft_p50_s, ttft_p99_s=ttft_p99_s, gap_p50_s=gap_p50_s, gap_p99_s=gap_p99_s,
        request_p50_s=ttft_p50_s + cycle.decode_s, request_p99_s=ttft_p99_s + cycle.decode_s,
    )  # fmt: skip


def crowd_deviations(running: Numbers, *, growing: Numbers, prefilling: Numbers) -> tuple[Any, Any]:
    """(requests in flight, time of a request's tokens): standard deviations over their means.

    A steady rate ``r`` of arrivals keeps ``running`` requests, whose tokens take ``n^growing / (1 − prefilling)``: by the
    sequences beside them and the share of time that prompts take. A little more of ``r`` makes a stay ``g = (growing +
    prefilling / (1 − prefilling)) / (1 − growing)`` times as much longer, as in processor sharing, where ``g = busy / (1 −
    busy)`` and the variance of the number in it is ``running / (1 − busy) = running · (1 + g)``. What arrives above the mean
    fades in ``1 / (1 − growing)`` stays, so over one stay ``h = 2 (x − 1 + e^−x) / x²`` of its variance is left, ``x = 1.3 (1 −
    growing)``.

    Numbers or arrays that broadcast. Source: Coffman, Muntz and Trotter 1970 and Kelly 1979 (processor sharing: numbers do not
    hang on the distribution of lengths); the law of the stay is a linear response.
    """
    grows = np.clip(np.asarray(growing, dtype=float), 0.0, _MOST_BUSY)
    gain = (grows + np.asarray(prefilling) / (1.0 - np.asarray(prefilling))) / (1.0 - grows)
    x = _FADES * (1.0 - grows)
    left = 2.0 * (x - 1.0 + np.exp(-x)) / x**2
    return np.sqrt((1.0 + gain) / running), gain * np.sqrt((1.0 - grows) * left / running)


def poisson_percentile(mean: Numbers, share: float) -> Any:
    """The least number that is not exceeded with probability ``share`` where ``mean`` arrive; at most 48.

    Numbers or arrays. Source: the Poisson distribution, term by term.
    """
    mean = np.asarray(mean, dtype=float)
    term = np.exp(-mean)
    below, found = term, np.where(term >= share, 0.0, float(_MOST_PROMPTS))
    for count in range(1, _MOST_PROMPTS):
        term = term * mean / count
        below = below + term
        found = np.where((below >= share) & (found > count), float(count), found)
    return found
