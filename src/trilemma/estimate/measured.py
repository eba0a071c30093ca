"""Measured figures put in the place of predicted ones, so that later stages of a start-up rest on what really happened."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trilemma.columns import column
from trilemma.engines.base import KvPool, StartUp
from trilemma.memory.ledger import Ledger, Line

#: What engines measure → the ledger lines that it covers, the first standing for all once measured.
MEASURED_LINES: Mapping[str, tuple[str, ...]] = {
    "weights_bytes": ("weights", "draft_model", "vision", "adapter"),
    "activation_bytes": ("activations", "logits"),
    "non_torch_bytes": ("workspace", "communication"),
    "cuda_graph_bytes": ("cuda_graphs",),
}
#: Engines print GiB with two decimals: a figure may differ by half of the last digit and be the same.
_PRINTED_BYTES = 0.005 * 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class LogComparison:
    """One figure, predicted (with its 90 % interval) and measured; ``where`` is the file and line that say so."""

    name: str
    predicted: float
    low: float
    high: float
    measured: float
    where: str = field(default="", metadata=column(then="diverges"))

    @property
    def diverges(self) -> bool:
        """Whether the measurement lies outside the interval by more than rounding in print."""
        slack = _PRINTED_BYTES if self.name.endswith("_bytes") else 0.02 * abs(self.measured)
        return not self.low - slack <= self.measured <= self.high + slack


def lines_bytes(start: StartUp, names: Sequence[str]) -> tuple[float, float, float]:
    """(value, low, high) of the lines ``names`` together, their half-widths added in quadrature: they err apart."""
    lines = [line for name in names if (line := start.ledger.get(name)) is not None]
    value = sum(float(line.bytes) for line in lines)
    below = math.hypot(*(float(line.bytes) - float(line.low) for line in lines)) if lines else 0.0
    above = math.hypot(*(float(line.high) - float(line.bytes) for line in lines)) if lines else 0.0
    return value, value - below, value + above


def given_lines(
    start: StartUp,
    measured: Mapping[str, float],
    *,
    pool_of: Callable[[int], KvPool],
    source: str = "as the engine printed",
) -> StartUp:
    """``start`` with the lines of `MEASURED_LINES` that ``measured`` names at the bytes measured.

    What we said too much inside the budget is given back to the pool, whose interval loses the share that was those
    lines'; ``pool_of`` counts blocks and tokens of a pool of given bytes. ``kv_cache_bytes`` among ``measured`` is the
    pool itself and overrides what follows from the lines.
    """
    available = float(start.pool.available_bytes)
    below = available - float(start.pool.available_low_bytes)
    above = float(start.pool.available_high_bytes) - available
    ledger, load_peak = start.ledger, float(start.load_peak_bytes)
    for name, n_bytes in measured.items():
        names = MEASURED_LINES.get(name)
        if names is None:
            continue
        ours, low, high = lines_bytes(start, names)
        ledger = _with_line(ledger, names, n_bytes, source)
        if name == "weights_bytes":
            load_peak += n_bytes - ours
        if ledger[names[0]].budget == "inside":
            available += ours - n_bytes
            below, above = _without(below, high - ours), _without(above, ours - low)
    if "kv_cache_bytes" in measured:
        available, below, above = measured["kv_cache_bytes"], 0.0, 0.0
    pool = replace(
        sized_pool(start.pool, available, pool_of),
        available_bytes=available,
        available_low_bytes=available - below,
        available_high_bytes=available + above,
    )
    return replace(
        start,
        pool=pool,
        ledger=_with_pool(ledger, available, below, above),
        load_peak_bytes=load_peak,
        spread_bytes=(below + above) / 2,
    )


def sized_pool(pool: KvPool, n_bytes: float, pool_of: Callable[[int], KvPool]) -> KvPool:
    """The pool that ``n_bytes`` per GPU make; without any bytes there are no blocks."""
    if n_bytes >= 1:
        return pool_of(int(n_bytes))
    nothing = np.float64(0)
    return replace(pool, available_bytes=n_bytes, blocks=nothing, tokens=nothing, concurrency=nothing, max_context=0)


def compare(start: StartUp, measured: Mapping[str, tuple[float, str]]) -> list[LogComparison]:
    """Predicted beside measured, in the order in which start-up reaches them: ``measured`` is name → (value, where)."""
    found = []
    for name, (value, where) in measured.items():
        if name in MEASURED_LINES:
            predicted, low, high = lines_bytes(start, MEASURED_LINES[name])
        elif name == "kv_cache_bytes":
            pool = start.pool
            predicted, low, high = (
                float(figure) for figure in (pool.available_bytes, pool.available_low_bytes, pool.available_high_bytes)
            )
        else:
            continue
        found.append(LogComparison(name=name, predicted=predicted, low=low, high=high, measured=value, where=where))
    order = [*MEASURED_LINES, "kv_cache_bytes"]
    return sorted(found, key=lambda one: order.index(one.name))


def _without(total: float, part: float) -> float:
    """The half-width left when a part that errs on its own is known exactly."""
    return math.sqrt(max(total * total - part * part, 0.0))


def _with_line(ledger: Ledger, names: Sequence[str], n_bytes: float, source: str) -> Ledger:
    first = ledger.get(names[0])
    budget = first.budget if first is not None else "inside"
    line = Line(
        name=names[0], bytes=n_bytes, low=n_bytes, high=n_bytes, budget=budget, formula="measured", source=source
    )
    return Ledger(lines=(*(other for other in ledger if other.name not in names), line))


def _with_pool(ledger: Ledger, n_bytes: float, below: float, above: float) -> Ledger:
    sized, low, high = (max(one, 0.0) for one in (n_bytes, n_bytes - below, n_bytes + above))
    changed = (replace(line, bytes=sized, low=low, high=high) if line.name == "kv_cache" else line for line in ledger)
    return Ledger(lines=tuple(changed))
