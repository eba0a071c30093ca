"""A building for so many cards, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trilemma.facilities.facts import facility_data
from trilemma.intervals import Interval
from trilemma.quantities import counted, show_count
from trilemma.report.wrapping import wrapped

if TYPE_CHECKING:
    from trilemma.facilities.answer import Facility, RentOrBuy


def render_facility(found: Facility, *, width: int, explain: bool = False) -> str:
    """Power, racks, cooling, a year, heat and money, a paragraph each; what was assumed at the end."""
    lines = [_head(found)]
    for name, told in _parts(found):
        for at, words in enumerate(told):
            lead = f"{name:11}" if at == 0 else " " * 11
            lines += wrapped(words, width, initial_indent=lead, subsequent_indent=" " * 13)
    if found.warnings:
        lines += ["", "assumed and uncertain"]
        for one in found.warnings:
            lines += wrapped(one.message, width, initial_indent="  - ", subsequent_indent="    ")
    if explain:
        lines += ["", "sources", *_sources(found, width)]
    return "\n".join(lines)


def _head(found: Facility) -> str:
    inputs = found.inputs
    nodes = counted(found.power.nodes, "node")
    return f"{show_count(inputs['gpus'])} x {inputs['gpu']} in {nodes}, cooled by {found.cooling.cooling}"


def _parts(found: Facility) -> Iterator[tuple[str, list[str]]]:
    power, year = found.power, found.year
    yield (
        "power",
        [
            f"cards {_kw(power.cards_kw)}, beside them {_kw(power.beside_kw)}: IT {_kw(power.it_kw)}",
            f"building {_kw(power.facility_kw)} at a PUE of {_range(power.pue, 2)}",
            f"a node of {counted(power.node_gpus, 'GPU')} takes {power.node_kw_at_most:,.1f} kW at most",
        ],
    )
    if (racks := found.racks) is not None:
        told = f"none holds a node in {racks.kw_per_rack:g} kW"
        if racks.nodes_per_rack:
            told = (
                f"{counted(racks.racks, 'rack')} of {racks.kw_per_rack:g} kW, {counted(racks.nodes_per_rack, 'node')}"
                f" ({counted(racks.gpus_per_rack, 'GPU')}) in each, {racks.headroom_kw:,.1f} kW to spare"
            )
        yield "racks", [told]
    enough = "enough" if found.cooling.enough else f"not enough, take {found.cooling.needed}"
    yield "cooling", [f"{found.cooling.cooling}: {enough}; {found.cooling.reason}"]
    yield "a year", list(_year(found))
    if (saved := found.pue_saved) is not None:
        yield (
            "PUE saved",
            [
                f"from {saved.before:g} to {saved.after:g}: {show_count(saved.kwh)} kWh, ${show_count(saved.usd)},"
                f" {saved.co2_tonnes:,.0f} t of CO2 a year"
            ],
        )
    if (heat := found.heat) is not None:
        words = f"at {heat.clock_share:.0%} of the clocks {_share(heat.kept)} of the tokens are kept"
        if heat.usd_per_year is not None:
            words += f"; the rest is paid with ${_range(heat.usd_per_year, 0)} a year"
        yield "heat", [words]
    if found.rent_or_buy is not None:
        yield "money", list(_money(found.rent_or_buy))
    if year.kwh_per_million_tokens is not None and year.co2_grams_per_million_tokens is not None:
        yield (
            "a token",
            [
                f"a million take {_range(year.kwh_per_million_tokens, 3)} kWh of the building and"
                f" {_range(year.co2_grams_per_million_tokens, 0)} g of CO2"
            ],
        )


def _year(found: Facility) -> Iterator[str]:
    year = found.year
    yield f"{_range(year.facility_kwh.scaled(1e-3), 0)} MWh, {_range(year.it_kwh.scaled(1e-3), 0)} of them IT"
    yield f"${_range(year.electricity_usd, 0)} of electricity"
    yield f"{_range(year.co2_tonnes, 0)} t of CO2, {_range(year.water_m3, 0)} m³ of water"


def _money(found: RentOrBuy) -> Iterator[str]:
    own, rent = found.own_usd_per_gpu_hour, found.rent_usd_per_gpu_hour
    yield f"owning ${own:,.2f} a GPU and hour that is used, renting ${rent:,.2f}: {'buy' if found.cheaper == 'own' else 'rent'}"
    parts = ", ".join(f"{name} ${show_count(usd)}" for name, usd in found.parts_usd.items())
    yield f"over {found.years:g} years ${show_count(found.own_usd)} ({parts}) against ${show_count(found.rent_usd)}"
    if found.break_even_months is not None:
        yield f"bought ones are paid for after {found.break_even_months:,.1f} months of rent that is spared"
    if found.break_even_utilisation is not None:
        yield f"buying is cheaper from {found.break_even_utilisation:.0%} of the hours in use on"
    else:
        yield "renting is cheaper though every hour is used"


def _kw(interval: Interval) -> str:
    return f"{_range(interval, 1 if interval.value < 1000 else 0)} kW"


def _share(interval: Interval) -> str:
    return f"{interval.value:.0%} ({interval.low:.0%} – {interval.high:.0%})"


def _range(interval: Interval, digits: int) -> str:
    value = f"{interval.value:,.{digits}f}"
    if interval.high - interval.low <= 1e-9 * max(abs(interval.value), 1e-12):
        return value
    return f"{value} ({interval.low:,.{digits}f} – {interval.high:,.{digits}f})"


def _sources(found: Facility, width: int) -> Iterator[str]:
    data, inputs = facility_data(), found.inputs
    told = {
        "cooling": data["cooling"][found.cooling.cooling]["source"],
        "climate": data["climate"][inputs["climate"]]["source"],
        "CO2": data["grid"]["source"],
        "price": data["grid"]["price_source"],
        "owning": data["owning"]["source"],
    }
    for name, source in told.items():
        yield from wrapped(f"{name}: {source}", width, initial_indent="  - ", subsequent_indent="    ")
