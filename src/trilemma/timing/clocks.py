"""What a power cap costs: the clock at which a card draws no more, and the speed that is left at it.

At a clock ``r`` (of the one that it runs at without a cap) the work of a card draws ``V(r)²`` of what it draws at full voltage,
at the speed that is kept; idle units draw ``1 − c + c · r · V(r)²``. ``V`` falls with the clock to a floor. Of the time of a
step the parts that follow the clock, ``φ``, take ``1/r`` of theirs: ``kept = 1 / (1 − φ + φ/r)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.hardware.accelerator import Accelerator
from trilemma.quantities import Numbers
from trilemma.timing.pass_time import PassTime
from trilemma.timing.power import Activity, PowerTerms, drawn_share
from trilemma.timing.serving_terms import chips_of

#: Clocks that are tried, of the highest; no card runs slower under load.
_CLOCKS = np.linspace(0.15, 1.0, 256)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockLaw:
    """The floor of the voltage and the clock up to which it lies there, the part of idle power that follows the clock, and the
    parts of launches, memory time and arithmetic that do. ``half``: logarithm by which nine of ten kept speeds lie around."""

    floor_voltage: float
    knee: float
    idle_clocked: float
    launches: float
    memory: float
    compute: float
    half: float


@cache
def _laws() -> Mapping[str, Any]:
    return read_data("coefficients/clocks.toml")


def clock_law(accelerator: Accelerator) -> ClockLaw:
    """The law of the chips of ``accelerator``, or that which measured chips share with a wider range."""
    data = _laws()
    shared = {name: value for name, value in data["shared"].items() if name != "others"}
    own = data["chips"].get(chips_of(accelerator))
    return ClockLaw(**(shared | own if own is not None else shared | {"half": data["shared"]["others"]}))


def untold_half() -> float:
    """The logarithm by which nine of ten kept speeds lie around the law where no card of that kind, or no such work, was
    measured.

    A number without a unit. Source: clocks.toml."""
    return float(_laws()["shared"]["others"])


def voltage(clock: Numbers, law: ClockLaw) -> Any:
    """Voltage at ``clock`` over that at the highest, from a floor up to the knee and with the square of what is above it.

    Shares without a unit, numbers or arrays of one shape. Source: nvidia-smi power at locked clocks, see clocks.toml.
    """
    above = np.clip((np.asarray(clock, dtype=float) - law.knee) / (1 - law.knee), 0.0, 1.0)
    return law.floor_voltage + (1 - law.floor_voltage) * above**2


def clocked_parts(one: PassTime) -> dict[str, Any]:
    """The shares of a pass that `clocked_share` asks for; the rest waits for hosts and wires.

    Shares without a unit, in the shape of the pass. Source: the lines of the pass.
    """
    total_s = one.total_s
    return {
        "launches": one.lines.get("kernels", 0.0) / total_s,
        "memory": one.resources["memory_bandwidth"] / total_s,
        "compute": one.resources["compute"] / total_s,
    }


def clocked_share(parts: Mapping[str, Numbers], law: ClockLaw) -> Any:
    """The part of a step's time that follows the clock: ``parts`` are its shares by "launches", "memory" and "compute".

    Shares without a unit, numbers or arrays of one shape. Source: by definition; the law's shares from clocks.toml.
    """
    return sum((getattr(law, name) * np.asarray(share, dtype=float) for name, share in parts.items()), np.float64(0.0))


def kept_speed(clock: Numbers, clocked: Numbers) -> Any:
    """The speed that is kept at ``clock`` where the part ``clocked`` of the time follows it: ``1 / (1 − φ + φ/r)``.

    Shares without a unit, numbers or arrays that broadcast. Source: by definition (Amdahl 1967).
    """
    share = np.asarray(clocked, dtype=float)
    return 1.0 / (1.0 - share + share / np.asarray(clock, dtype=float))


def share_at_clock(clock: Numbers, activity: Activity, terms: PowerTerms, law: ClockLaw, clocked: Numbers) -> Any:
    """The share of the board's limit drawn at ``clock`` by what is ``activity`` at the highest clock.

    Shares without a unit, numbers or arrays that broadcast. Source: dynamic power goes with the square of the voltage and the
    rate of switching; see clocks.toml.
    """
    squared = voltage(clock, law) ** 2
    idle = terms.shares["idle"]
    # a board that would draw more than its limit runs at it already: its highest clock is the one that it has there
    work = np.clip(np.asarray(drawn_share(activity, terms)) - idle, 0.0, 1.0 - idle)
    still = 1.0 - law.idle_clocked + law.idle_clocked * np.asarray(clock) * squared
    return idle * still + work * squared * kept_speed(clock, clocked)


def clock_under_cap(cap: float, activity: Activity, terms: PowerTerms, law: ClockLaw, clocked: Numbers) -> Any:
    """The highest clock at which no more than the share ``cap`` of the board's limit is drawn; the lowest where none is.

    Shares of the highest clock, in the shape of ``activity`` (number or array). Source: `share_at_clock`, solved.
    """
    shape = np.broadcast_shapes(np.shape(activity.compute), np.shape(activity.memory), np.shape(clocked))
    clocks = _CLOCKS.reshape(-1, *[1] * len(shape))
    drawn = np.broadcast_to(share_at_clock(clocks, activity, terms, law, clocked), (len(_CLOCKS), *shape))
    allowed = drawn <= cap
    highest = np.where(allowed.any(axis=0), len(_CLOCKS) - 1 - allowed[::-1].argmax(axis=0), 0)
    return _CLOCKS[highest]
