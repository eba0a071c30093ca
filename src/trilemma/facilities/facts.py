"""What is known of nodes, cooling, climates and grids (``data/facility.toml``), found by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, shorten
from trilemma.hardware.accelerator import Accelerator
from trilemma.intervals import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """A node, or a rack sold as one: kilowatts beside its cards at full load, GPUs, inlet limits in degrees Celsius, how it is
    cooled as sold."""

    gpus: int
    beside_kw: Interval
    cooling: str
    inlet_c: tuple[float, float] | None
    source: str


@cache
def facility_data() -> Mapping[str, Any]:
    """The facts as read."""
    return read_data("facility.toml")


def named(table: str, name: str) -> Mapping[str, Any]:
    """The row ``name`` of a table of facts. Raises `InputError` with the names that there are."""
    rows: Mapping[str, Mapping[str, Any]] = facility_data()[table]
    row = rows.get(str(name).lower())
    if row is None:
        what = table.removesuffix("s")
        raise InputError(f"`{what}` {shorten(str(name))!r} is not known; give one of {', '.join(rows)}")
    return row


def node_of(card: Accelerator, limit_kw: float, gpus: int) -> NodeFacts:
    """The node that ``card``, with a limit of ``limit_kw``, is sold in, or one of ``gpus`` at most like those of other cards."""
    words = card.id.replace("sxm5", "sxm").removeprefix("nvidia-")
    for row in facility_data()["node"]:
        if any(words.startswith(one) for one in row["cards"]):
            beside = max(row["kw"] - row["gpus"] * limit_kw, 0.0)
            inlet = tuple(row["inlet_c"]) if "inlet_c" in row else None
            return NodeFacts(
                gpus=row["gpus"], beside_kw=Interval.exact(beside), cooling=row["cooling"],
                inlet_c=None if inlet is None else (float(inlet[0]), float(inlet[1])), source=row["source"],
            )  # fmt: skip
    other = facility_data()["other_nodes"]
    held = min(card.gpus_per_node, gpus)
    limits = held * limit_kw
    return NodeFacts(
        gpus=held,
        beside_kw=Interval(value=limits * other["share"], low=limits * other["low"], high=limits * other["high"]),
        cooling="air",
        inlet_c=None,
        source=other["source"],
    )


def pue_of(cooling: str, climate: str) -> Interval:
    """Power of the building over that of its IT: the overhead of the cooling, more or less of it by the climate."""
    factor = float(named("climate", climate)["overhead"])
    low, value, high = (1.0 + (one - 1.0) * factor for one in named("cooling", cooling)["pue"])
    return Interval(value=value, low=low, high=high)


def litres_per_kwh(cooling: str, climate: str) -> Interval:
    """Litres that evaporate on site for a kilowatt-hour of IT."""
    share = float(named("cooling", cooling)["water"])
    low, value, high = (share * one for one in named("climate", climate)["litres_per_kwh"])
    return Interval(value=value, low=low, high=high)


def usd_per_kwh(region: str) -> Interval:
    """Dollars of a kilowatt-hour for a large user."""
    low, value, high = named("regions", region)["usd_per_kwh"]
    return Interval(value=value, low=low, high=high)
