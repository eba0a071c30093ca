"""Requests that share an engine: how long one waits, and what the slowest see.

Closed forms for a fixed number of requests in flight (each user sends the next request when one is answered), and the
queue before several workers that take equal time for each request.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.quantities import Numbers

#: The largest share of a server's time that counts as carried.
_MOST_BUSY = 0.98
#: P50 and P99 of an exponential waiting time over its mean: ln 2 and ln 100.
_P50, _P99 = float(np.log(2.0)), float(np.log(100.0))


def waiting_s(offered: Numbers, running: Numbers, cycle_s: Numbers) -> Any:
    """Seconds that a request waits for a slot when ``offered`` are in flight and ``running`` fit: Little's law.

    A slot is free again after ``cycle_s``, so ``running / cycle_s`` requests leave a second and each of the
    ``offered − running`` in line waits its turn.

    Numbers or arrays that broadcast. Source: Little 1961.
    """
    return np.maximum(np.asarray(offered, dtype=float) - running, 0.0) * cycle_s / running


def shared_queue_wait_s(busy: Numbers, servers: Numbers, service_s: Numbers) -> Any:
    """Mean seconds in a queue before ``servers`` workers that are ``busy`` a share of the time, each request ``service_s``.

    M/D/c: half of the wait of M/M/c (Allen and Cunneen: half the sum of squared variations of arrivals, 1, and of service,
    0), which is ``service · busy^(√(2(c + 1)) − 1) / (c · (1 − busy))`` (Sakasegawa 1977). Infinite from ``busy`` = 1 on.

    Numbers or arrays that broadcast.
    """
    busy, servers = np.asarray(busy, dtype=float), np.asarray(servers, dtype=float)
    below = np.minimum(busy, 1.0 - 1e-15)
    wait_s = service_s * below ** (np.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - below)) / 2
    return np.where(busy < 1.0, wait_s, np.inf)


def arrivals_ahead_s(rate: Numbers, *, each_s: Numbers, step_s: Numbers) -> Any:
    """Mean seconds that a prompt waits for prompts that came before it, where they arrive as Poisson says, ``rate`` a second.

    M/D/1 for prompts of ``each_s``, ``busy / (1 − busy) · each / 2``; steps that decode run between them, so the turn in which a
    request is taken up is ``step / (1 − busy)`` long instead of ``step``.

    Numbers or arrays that broadcast; no more than near saturation. Source: Pollaczek and Khinchine (M/D/1), gated service.
    """
    busy = np.minimum(np.asarray(rate, dtype=float) * each_s, _MOST_BUSY)
    return busy / (1.0 - busy) * (np.asarray(each_s) / 2 + step_s)


def arrivals_ahead_percentiles_s(rate: Numbers, *, each_s: Numbers, step_s: Numbers) -> tuple[Any, Any]:
    """(P50, P99) of `arrivals_ahead_s`: a share ``busy`` of the prompts waits at all, their times fall off exponentially about
    the mean that M/D/1 has, ``each / 2 / (1 − busy)``; the longer turn is everybody's.

    Numbers or arrays that broadcast. Source: Kingman 1961, the exponential law of waits, with the idle share of M/G/1.
    """
    busy = np.minimum(np.asarray(rate, dtype=float) * each_s, _MOST_BUSY)
    wait_s, turn_s = np.asarray(each_s) / 2 / (1.0 - busy), busy / (1.0 - busy) * step_s
    p50_s, p99_s = (turn_s + wait_s * np.log(np.maximum(busy * among, 1.0)) for among in (2.0, 100.0))
    return p50_s, p99_s


def percentiles_s(sure_s: Numbers, waited_s: Numbers) -> tuple[Any, Any]:
    """(P50, P99) of a time made of a sure part and a wait taken as exponentially distributed about its mean.

    Seconds, numbers or arrays that broadcast: ``sure + ln 2 · wait`` and ``sure + ln 100 · wait``, by definition of
    that distribution.
    """
    return sure_s + _P50 * np.asarray(waited_s), sure_s + _P99 * np.asarray(waited_s)


def token_gap_percentiles_s(step_s: Numbers, prefill_s: Numbers, prefills_per_step: Numbers) -> tuple[Any, Any]:
    """(P50, P99) of the gap between two tokens: a bare step, or one into which a prefill of others falls.

    A prefill falls into a share of steps; where that share is above 50 % (1 %) the median (99th percentile) gap has one.

    Numbers or arrays that broadcast. By definition of a mixture of two values.
    """
    share = np.asarray(prefills_per_step)
    with_prefill = step_s + np.asarray(prefill_s) * np.maximum(share, 1.0)
    return np.where(share > 0.5, with_prefill, step_s), np.where(share > 0.01, with_prefill, step_s)
