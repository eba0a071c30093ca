"""Pieces that the formulas of several kernels share: rounded maxima, waves of thread blocks, pairs under a causal mask."""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.quantities import Numbers

NANO = 1e-9
MICRO = 1e-6
MEGA = 1e6


def rounded_max(first: Any, second: Any, power: float) -> Any:
    """``(first^p + second^p)^(1/p)``: two resources used at once, slower than either alone where they are equally busy.

    Seconds in, seconds out; numbers or arrays that broadcast.
    """
    larger = np.maximum(first, second)
    ratio = np.minimum(first, second) / np.where(larger > 0, larger, 1.0)
    return larger * (1.0 + ratio**power) ** (1.0 / power)


def waves(blocks: Any, multiprocessors: float, tail: float) -> Any:
    """Rounds in which ``blocks`` equal thread blocks pass over a card, never below one.

    A card without a stated count of multiprocessors is taken as evenly filled (one wave is one block). ``tail`` is how much
    of the last, unfilled round is paid: 1 all of it (static schedule), 0 none (persistent kernels that share it out).

    Numbers or arrays that broadcast. Source: NVIDIA, Matrix Multiplication Background User's Guide, section 4 (wave
    quantisation).
    """
    rounds = blocks / max(multiprocessors, 1.0)
    return np.maximum(rounds + tail * (np.ceil(rounds) - rounds), 1.0)


def causal_pairs(new: Numbers, cached: Numbers, window: Numbers) -> Any:
    """Query-key pairs of ``new`` tokens behind ``cached`` ones, each query seeing at most ``window`` keys (0: all).

    Query i sees ``min(cached + i, window)`` keys; summed in closed form.

    Numbers or arrays that broadcast. By definition of the mask.
    """
    new, cached, window = (np.asarray(value, dtype=float) for value in (new, cached, window))
    limit = np.where(window > 0, window, np.inf)
    growing = np.clip(limit - cached, 0.0, new)
    full = np.where(new > growing, limit, 0.0)
    return growing * cached + growing * (growing + 1) / 2 + (new - growing) * full


def seen(context: Numbers, window: Numbers) -> Any:
    """Tokens that one query reads: ``context``, at most ``window`` of them where that is not 0.

    Numbers or arrays that broadcast. By definition of a sliding window (Beltagy et al. 2020).
    """
    context, window = np.asarray(context, dtype=float), np.asarray(window, dtype=float)
    return np.where(window > 0, np.minimum(context, window), context)
