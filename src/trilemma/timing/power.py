"""Watts of a card from what it does: idle, arithmetic and memory as shares of the board's limit, and joules a token from them.

``watts = limit · min(1, idle + compute · u_c + memory · u_m + gathered · g)``: ``u_c`` and ``u_m`` are the shares of the time in
which the units and the memory would do the work at their datasheet's peak, ``g`` the part of the bytes that are weights of
experts, whose kernels gather rows and pad them to tiles, so that units are busy for rows that are not there. The coefficients
stand in ``data/coefficients/power.json`` by chips (a generation and its kind of memory); others take what all share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.hardware.accelerator import Accelerator
from trilemma.plans import Layout
from trilemma.quantities import Numbers
from trilemma.timing.host_weights import HOST_LINES
from trilemma.timing.machine import Machine
from trilemma.timing.operators import ModelWork
from trilemma.timing.pass_time import PassTime
from trilemma.timing.serving_terms import chips_of

if TYPE_CHECKING:
    from trilemma.timing.serving_step import ServingSpeed

#: Shares of the board's limit that are fitted, in their order.
POWER_TERMS = ("idle", "compute", "memory", "gathered", "gathered_narrow")
#: Weights of at most so many bits are narrow: their kernels convert them or scale sums on the way.
_NARROW_BITS = 8.5


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerTerms:
    """Shares of a board's limit by `POWER_TERMS`; ``half`` is the logarithm by which nine of ten measured watts lie around them.

    ``chips`` names whose they are, "" what all share.
    """

    shares: Mapping[str, float]
    half: float
    chips: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """What a card does: shares of the time that its arithmetic and its traffic would take at the datasheet's peak, the part
    ``gathered`` of the traffic that is experts' weights, and of that which is ``gathered_narrow`` (8 bits and fewer).

    Numbers or arrays of one shape, without a unit.
    """

    compute: Numbers
    memory: Numbers
    gathered: Numbers = 0.0
    gathered_narrow: Numbers = 0.0

    def at_rate(self, share: Numbers) -> Activity:
        """The same work at ``share`` of its rate."""
        return replace(self, compute=self.compute * share, memory=self.memory * share)


def power_terms(accelerator: Accelerator) -> PowerTerms:
    """The terms of the chips of ``accelerator``, or those that all measured chips share."""
    data = power_data()
    chips = chips_of(accelerator)
    row = data["chips"].get(chips)
    if row is None:
        return PowerTerms(shares=data["shared"]["shares"], half=data["shared"]["half"])
    return PowerTerms(shares=row["shares"], half=row["half"], chips=chips)


@cache
def power_data() -> Mapping[str, Any]:
    """The fitted terms as shipped."""
    return read_data("coefficients/power.json")


def serving_activity(
    speed: ServingSpeed, machine: Machine, work: ModelWork, layout: Layout, *, replicas: Numbers = 1
) -> Activity:
    """What a rank does under a load: the work of a token's part of a step and of other requests' prompts over the time that a
    token takes, for the part of the time in which there is any request; ``replicas`` engines share the load. What lies on the
    host is none of the card's.

    Shares, in the shape of the load.
    """
    token_s = np.asarray(speed.tpot_s, dtype=float)
    # a rate below what the plan can do leaves the card idle between requests
    in_flight = np.asarray(speed.running) * np.asarray(layout.dp) * np.asarray(replicas)
    duty = np.minimum(np.asarray(speed.output_tokens_per_s) * token_s / np.maximum(in_flight, 1e-9), 1.0)
    parts = ((speed.step, speed.steps_per_token), (speed.prefill, speed.prefills_per_token))
    return passes_activity(parts, machine, work, token_s / duty)


def pass_activity(one: PassTime, machine: Machine, work: ModelWork) -> Activity:
    """What a rank does while one kind of pass follows another."""
    return passes_activity(((one, 1.0),), machine, work, one.total_s)


def passes_activity(parts: Any, machine: Machine, work: ModelWork, seconds: Any) -> Activity:
    """What a rank does that takes ``seconds`` for ``parts``: passes, and how many of each."""
    computing_s: Any = np.float64(0.0)
    moved: Any = np.float64(0.0)
    gathered: Any = np.float64(0.0)
    for one, times in parts:
        computing_s = computing_s + one.computing_s * times
        for line in one.works:
            if line.line not in HOST_LINES:
                n_bytes = np.asarray(line.work.bytes) * np.asarray(line.repeats) * times
                moved = moved + n_bytes
                gathered = gathered + (n_bytes if line.line == "experts" else 0.0)
    share = gathered / np.maximum(moved, 1e-9)
    narrow = _narrow_share(work)
    return Activity(
        compute=computing_s / seconds,
        memory=moved / machine.bandwidth / seconds,
        gathered=share,
        gathered_narrow=share * narrow,
    )


def _narrow_share(work: ModelWork) -> float:
    """The part of the experts' weights that is stored in 8 bits and fewer."""
    sizes = [(one.elements * one.layers, one.bits <= _NARROW_BITS) for one in work.experts]
    total = sum(size for size, _ in sizes)
    return sum(size for size, narrow in sizes if narrow) / total if total else 0.0


def drawn_share(activity: Activity, terms: PowerTerms) -> Any:
    """The share of the board's limit that ``activity`` would draw were there no limit: above 1 the board slows its clocks.

    Shares of the limit, numbers or arrays in the shape of ``activity``. Source: fitted to measured runs, see
    ``data/coefficients/power.json``.
    """
    columns = power_columns(activity)
    found: Any = np.float64(0.0)
    for name in POWER_TERMS:
        found = found + terms.shares[name] * columns[name]
    return found


def activity_of_columns(columns: Any) -> Activity:
    """`power_columns` in the order of `POWER_TERMS`, read back."""
    told = dict(zip(POWER_TERMS, columns, strict=True))
    return Activity(**{name: value for name, value in told.items() if name != "idle"})


def power_columns(activity: Activity) -> dict[str, Any]:
    """What each of `POWER_TERMS` multiplies, shares in the shape of ``activity`` (numbers or arrays of plans)."""
    return {
        "idle": np.ones_like(np.asarray(activity.compute, dtype=float)),
        "compute": np.asarray(activity.compute, dtype=float),
        "memory": np.asarray(activity.memory, dtype=float),
        "gathered": np.asarray(activity.gathered, dtype=float),
        "gathered_narrow": np.asarray(activity.gathered_narrow, dtype=float),
    }
