"""Where an engine's start-up ends, how likely, and which memory fractions would let it pass.

Everything is a function of a `StartUp` and works for one plan and for tables. The pool's error is taken as normal with
the start-up's own spread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trilemma.engines.base import Stage, StartUp
from trilemma.intervals import NINETY
from trilemma.quantities import Numbers

#: Abramowitz and Stegun 7.1.26: the error function to 1.5e-7.
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


#: The stages in the order in which start-up passes them, the good end first.
STAGES: tuple[Stage, ...] = ("ok", "oom_load", "oom_profile", "kv_too_small", "oom_capture", "oom_runtime")


def stage_probabilities(start: StartUp) -> dict[Stage, Any]:
    """The probability of each stage at which start-up may end; they sum to one. Numbers, or arrays (plans,).

    In order: the weights do not fit, or the budget is refused because others hold the card (``oom_load``); no memory is
    left for the cache (``oom_profile``); it holds no request of full context, or too few recurrent states
    (``kv_too_small``); graphs do not fit even into the room of the activation peak, which is empty while they are captured
    (``oom_capture``); peak and graphs together do not fit (``oom_runtime``, in every second case: peaks are rare; where the
    lines sum to more than the card it is no less likely than not).
    """
    sigma = np.maximum(np.asarray(start.spread_bytes, dtype=float), 1.0) / NINETY
    free = start.capacity_bytes if start.free_bytes is None else np.minimum(start.capacity_bytes, start.free_bytes)
    load = _above(np.asarray(start.load_peak_bytes, dtype=float) - free, _weights_sigma(start))
    load = np.where(budget_refused(start), 1.0, load)
    available = np.asarray(start.pool.available_bytes, dtype=float)
    none_left = _above(-available, sigma)
    too_small = _above(least_pool_bytes(start) - available, sigma)
    headroom = np.asarray(outside_headroom_bytes(start), dtype=float)
    capture = _above(-headroom - _peak_bytes(start), _outside_sigma(start))
    runtime = (_above(-headroom, _outside_sigma(start)) - capture) / 2
    over = (
        np.asarray(start.ledger.total()) > start.capacity_bytes
    )  # what is held together is more than the card: no yes
    runtime = np.where(over, np.maximum(runtime, 0.5 - capture), runtime)
    after_load = 1 - load
    after_pool = after_load * (1 - np.maximum(too_small, none_left))
    found = {
        "ok": after_pool * (1 - capture - runtime),
        "oom_load": load,
        "oom_profile": after_load * none_left,
        "kv_too_small": after_load * np.maximum(too_small - none_left, 0),
        "oom_capture": after_pool * capture,
        "oom_runtime": after_pool * runtime,
    }
    return {stage: _plain(found[stage]) for stage in STAGES}


def likeliest(start: StartUp) -> tuple[Any, Any]:
    """(stage, probability): ``ok`` where it has at least half of the probability, else the likeliest of the failures with the
    probability that the start fails at all."""
    odds = stage_probabilities(start)
    names = np.asarray(list(odds))
    values = np.stack([np.atleast_1d(np.asarray(value, dtype=float)) for value in odds.values()])
    worst = 1 + np.argmax(values[1:], axis=0)
    over = np.asarray(start.ledger.total()) > start.capacity_bytes
    pick = np.where((values[0] >= 0.5) & ~over, 0, worst)
    stages, chances = names[pick], np.where(pick == 0, values[0], 1 - values[0])
    if np.ndim(start.pool.available_bytes):
        return stages, chances
    return str(stages[0]), float(chances[0])


def budget_refused(start: StartUp) -> Any:
    """Whether the engine refuses at once: its budget is more than what other processes leave free."""
    if start.free_bytes is None or not start.budget_checked_at_start:
        return np.zeros(np.shape(start.budget_bytes), dtype=bool)
    return np.asarray(start.budget_bytes) > start.free_bytes


def least_pool_bytes(start: StartUp) -> Any:
    """The smallest pool with which the engine starts: one request of full context, and a block for each recurrent state."""
    need = np.maximum(np.asarray(start.pool.need_bytes, dtype=float), start.pool.checked_bytes)
    blocks = np.maximum(np.asarray(start.pool.blocks, dtype=float), 1)
    per_block = np.maximum(np.asarray(start.pool.available_bytes, dtype=float), 1) / blocks
    return np.maximum(np.maximum(need, np.asarray(start.pool.least_blocks) * per_block), 1.0)


def outside_headroom_bytes(start: StartUp) -> Any:
    """What stays free of the card beside the budget and the lines outside it; negative when graphs will not fit."""
    free = start.capacity_bytes if start.free_bytes is None else np.minimum(start.capacity_bytes, start.free_bytes)
    return free - np.asarray(start.budget_bytes) - start.ledger.total("outside")


def feasible_fraction(start: StartUp) -> tuple[Any, Any] | None:
    """The memory fractions (low, high) with which the plan starts; None for a single plan when there are none.

    Below ``low`` the pool is too small, above ``high`` what lies outside the budget (graphs, context), or the memory that
    others leave free, does not fit. For a table two arrays; a row has none where low exceeds high. None always for an engine
    that takes no share of anything.
    """
    if start.fraction_of == "nothing":
        return None
    low, high = _of_unused(start) if start.fraction_of == "free after loading" else _of_card(start)
    if start.fraction_of == "free before loading":
        scale = _card_over_free(start)
        low, high = low * scale, np.minimum(high * scale, 1.0)
    if np.ndim(start.pool.available_bytes):
        return low, high
    return (float(low), float(high)) if low <= high else None


def _of_card(start: StartUp) -> tuple[Any, Any]:
    """Bounds of a share of the whole card."""
    capacity = np.asarray(start.capacity_bytes, dtype=float)
    inside = np.asarray(start.budget_bytes) - np.asarray(start.pool.available_bytes, dtype=float)
    low = (inside + least_pool_bytes(start)) / capacity
    free = capacity if start.free_bytes is None else np.minimum(capacity, start.free_bytes)
    room = free - start.ledger.total("outside")
    if start.budget_checked_at_start and start.free_bytes is not None:
        room = np.minimum(room, start.free_bytes)
    return low, np.minimum(room / capacity, 1.0)


def _card_over_free(start: StartUp) -> Any:
    """The card over what is free of it once a worker has its context, of which some engines take their share."""
    total = start.capacity_bytes if start.free_bytes is None else np.minimum(start.capacity_bytes, start.free_bytes)
    context = start.ledger.get("context")
    taken = np.zeros(()) if context is None else np.asarray(context.bytes, dtype=float)
    return np.asarray(start.capacity_bytes, dtype=float) / np.maximum(np.asarray(total) - taken, 1.0)


def _of_unused(start: StartUp) -> tuple[Any, Any]:
    """Bounds of a share of what all else leaves: those whose pool holds the longest request asked for."""
    unused = np.asarray(start.pool.available_bytes, dtype=float) / start.memory_fraction
    low = np.where(unused > 0, least_pool_bytes(start) / np.maximum(unused, 1.0), np.inf)
    return low, np.ones(np.shape(low))


def _peak_bytes(start: StartUp) -> Any:
    """The activation peak: room inside the budget that is empty between profiling and serving."""
    lines = (start.ledger.get(name) for name in ("activations", "logits"))
    return sum((np.asarray(line.bytes, dtype=float) for line in lines if line is not None), start=np.zeros(()))


def _weights_sigma(start: StartUp) -> Any:
    line = start.ledger["weights"]
    half = (np.asarray(line.high, dtype=float) - np.asarray(line.low, dtype=float)) / 2
    return np.maximum(half, 1.0) / NINETY


def _outside_sigma(start: StartUp) -> Any:
    widths = [np.square((np.asarray(line.high, float) - np.asarray(line.low, float)) / 2) for line in start.ledger
              if line.budget == "outside"]  # fmt: skip
    return np.maximum(np.sqrt(sum(widths, start=np.zeros(()))), 1.0) / NINETY


def _above(value: Any, sigma: Any) -> Any:
    """The probability that a normal variable about ``value`` is above zero."""
    z = np.asarray(value, dtype=float) / sigma / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * np.abs(z))
    series = t * (_ERF[0] + t * (_ERF[1] + t * (_ERF[2] + t * (_ERF[3] + t * _ERF[4]))))
    return np.where(z >= 0, 1 - series * np.exp(-z * z) / 2, series * np.exp(-z * z) / 2)


def _plain(value: Any) -> Numbers:
    return float(value) if np.ndim(value) == 0 else value
