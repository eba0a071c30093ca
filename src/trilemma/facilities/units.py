"""Power and energy as types that do not mix: kilowatts of so many things, kilowatt-hours, and what turns one into the other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from trilemma.errors import InputError, shorten

#: What a figure of power is of.
Of = Literal["gpu", "node", "rack", "site"]
OF: tuple[Of, ...] = ("gpu", "node", "rack", "site")
_KILO = {"W": 1e-3, "KW": 1.0, "MW": 1e3}
_STATED = re.compile(
    r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([a-zA-Z]{0,5})\s*(?:(?:/|per)\s*([a-zA-Z]{1,10}))?\s*", re.IGNORECASE
)
_THINGS: dict[str, Of] = {
    "gpu": "gpu", "card": "gpu", "accelerator": "gpu", "node": "node", "server": "node", "rack": "rack", "site": "site",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class KilowattHours:
    """Kilowatt-hours."""

    kwh: float

    def __add__(self, other: KilowattHours) -> KilowattHours:
        if not isinstance(other, KilowattHours):
            raise InputError(f"energy (kWh) and {_called(other)} do not add up; multiply power by hours first")
        return KilowattHours(kwh=self.kwh + other.kwh)

    def at(self, per_kwh: float) -> float:
        """What it comes to at so much a kilowatt-hour: dollars, grams, litres."""
        return self.kwh * per_kwh


@dataclass(frozen=True, kw_only=True, slots=True)
class Kilowatts:
    """Kilowatts ``of`` one GPU, node, rack, or of the whole site. Figures of different things do not add up."""

    kw: float
    of: Of

    def __post_init__(self) -> None:
        if not 0 <= self.kw < 1e9:
            raise InputError(f"{self.kw:g} kW is out of range; give a number from 0 to 1e9")

    def __add__(self, other: Kilowatts) -> Kilowatts:
        if not isinstance(other, Kilowatts):
            raise InputError(f"power (kW) and {_called(other)} do not add up; multiply power by hours first")
        if other.of != self.of:
            raise InputError(f"kW per {self.of} and kW per {other.of} do not add up; say of how many each is")
        return Kilowatts(kw=self.kw + other.kw, of=self.of)

    def times(self, count: float, *, of: Of) -> Kilowatts:
        """Of ``count`` of them, which are one ``of``."""
        return Kilowatts(kw=self.kw * count, of=of)

    def over(self, hours: float) -> KilowattHours:
        """What it comes to over so many hours."""
        return KilowattHours(kwh=self.kw * hours)

    def holds(self, other: Kilowatts) -> float:
        """How many of ``other``, each of a smaller thing, it feeds."""
        if OF.index(other.of) >= OF.index(self.of):
            raise InputError(f"kW per {self.of} does not feed kW per {other.of}; name the larger thing first")
        return self.kw / other.kw


def read_power(stated: object, *, name: str, of: Of, also: tuple[Of, ...] = ()) -> Kilowatts:
    """``700W``, ``2.17 kW/GPU``, ``40kW per rack``, or a number of kilowatts of one ``of``.

    Raises `InputError` for energy (kWh), for a unit of another kind, and for another thing than ``of`` or one of ``also``.
    """
    if isinstance(stated, int | float) and not isinstance(stated, bool):
        return Kilowatts(kw=float(stated), of=of)
    match = _STATED.fullmatch(str(stated)[:60])
    if match is None:
        raise InputError(f"`{name}` {shorten(str(stated))!r} is no power; give one such as 40kW")
    number, unit, thing = float(match[1]), match[2].upper(), (match[3] or "").lower()
    if unit.endswith("H"):
        raise InputError(f"`{name}` {shorten(str(stated))!r} is energy, and power is asked for; give kW, not kWh")
    if unit not in _KILO:
        raise InputError(f"`{name}` {shorten(str(stated))!r} has no unit of power; give W, kW or MW")
    told = _THINGS.get(thing.removesuffix("s"), of) if thing else of
    if thing and thing.removesuffix("s") not in _THINGS:
        raise InputError(f"`{name}` is per {shorten(thing)}; give it per {of}")
    if told != of and told not in also:
        raise InputError(
            f"`{name}` {shorten(str(stated))!r} is per {told}, and a figure per {of} is asked for; divide it first"
        )
    return Kilowatts(kw=number * _KILO[unit], of=told)


def _called(other: object) -> str:
    return (
        "power (kW)"
        if isinstance(other, Kilowatts)
        else "energy (kWh)"
        if isinstance(other, KilowattHours)
        else "a bare number"
    )
