"""From the watts of cards to a building: nodes, racks, cooling, a year of energy, carbon, water and dollars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trilemma.errors import InputError, PlanWarning
from trilemma.facilities.answer import CoolingVerdict, Facility, HeatCost, PueSaved, Racks, SitePower, Year
from trilemma.facilities.facts import NodeFacts, facility_data, litres_per_kwh, named, node_of, pue_of, usd_per_kwh
from trilemma.facilities.owning import HOURS_A_YEAR, Purchase, rent_or_buy
from trilemma.facilities.units import Kilowatts
from trilemma.hardware.accelerator import Accelerator
from trilemma.intervals import Interval
from trilemma.quantities import counted

#: Of a loss of clocks, work that waits for memory loses at least this part: curves of power caps (docs/power.md) lose 0.1 to 0.8.
_MEMORY_LOSES = 0.1
_KG, _TONNE = 1e3, 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class FacilityQuestion:
    """``gpus`` of ``card``, each drawing ``card_kw`` under the load and ``idle_kw`` without one, for the part ``utilisation`` of
    the ``hours`` of a year. What is not stated (None) is taken from the facts of cooling, climate and region."""

    card: Accelerator
    gpus: int
    card_kw: Interval
    limit_kw: float
    idle_kw: float
    cooling: str = ""
    climate: str = "temperate"
    region: str = "world"
    utilisation: float = 1.0
    hours: float = HOURS_A_YEAR
    pue: float | None = None
    better_pue: float | None = None
    usd_per_kwh: float | None = None
    grams_per_kwh: float | None = None
    litres_per_kwh: float | None = None
    rack: Kilowatts | None = None
    inlet_c: float | None = None
    clock_share: float | None = None
    tokens_per_s: Interval | None = None
    rent_usd_per_gpu_hour: float | None = None
    purchase: Purchase | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranges = {
            "utilisation": (1e-6, 1.0), "hours": (1.0, 8784.0), "pue": (1.0, 5.0), "better_pue": (1.0, 5.0),
            "usd_per_kwh": (0.0, 10.0), "grams_per_kwh": (0.0, 3000.0), "litres_per_kwh": (0.0, 50.0),
            "inlet_c": (-40.0, 80.0), "clock_share": (0.05, 1.0),
        }  # fmt: skip
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(f"`{name}` {value:g} is out of range; give a number from {low:g} to {high:g}")


def facility_of(question: FacilityQuestion) -> Facility:
    """The answer in full. Bounds of factors are multiplied end by end: watts, PUE and prices know nothing of each other."""
    node = node_of(question.card, question.limit_kw, question.gpus)
    cooling = question.cooling or node.cooling
    named("cooling", cooling)
    power = _power(question, node, cooling)
    racks = _racks(question, power)
    year, price = _year(question, node, cooling, power)
    rent = question.rent_usd_per_gpu_hour
    bought = None
    if question.purchase is not None:
        if rent is None:
            raise InputError("`capex` needs what renting costs beside it; give `rent`, dollars of a GPU and hour")
        bought = rent_or_buy(
            question.purchase, gpus=question.gpus, rent_usd_per_hour=rent, utilisation=question.utilisation,
            electricity_usd_per_year=year.electricity_usd.value,
        )  # fmt: skip
    hour = bought.own_usd_per_gpu_hour if bought is not None else rent
    return Facility(
        inputs=question.stated,
        power=power,
        racks=racks,
        cooling=_verdict(question, node, cooling, power, racks),
        year=year,
        pue_saved=_saved(question, power, year, price),
        heat=_heat(question, hour),
        rent_or_buy=bought,
        warnings=tuple(_warnings(question, node)),
    )


def _times(first: Interval, second: Interval) -> Interval:
    return Interval(value=first.value * second.value, low=first.low * second.low, high=first.high * second.high)


def _plus(first: Interval, second: Interval) -> Interval:
    return Interval(value=first.value + second.value, low=first.low + second.low, high=first.high + second.high)


def _power(question: FacilityQuestion, node: NodeFacts, cooling: str) -> SitePower:
    nodes = math.ceil(question.gpus / node.gpus)
    cards = question.card_kw.scaled(question.gpus)
    load = min(question.card_kw.value / question.limit_kw, 1.0)
    fixed = float(facility_data()["hosts"]["fixed"])
    beside = node.beside_kw.scaled(nodes * (fixed + (1 - fixed) * load))
    it_kw = _plus(cards, beside)
    pue = Interval.exact(question.pue) if question.pue is not None else pue_of(cooling, question.climate)
    return SitePower(
        cards_kw=cards,
        beside_kw=beside,
        it_kw=it_kw,
        pue=pue,
        facility_kw=_times(it_kw, pue),
        node_kw_at_most=node.gpus * max(question.limit_kw, question.card_kw.high) + node.beside_kw.value,
        node_gpus=node.gpus,
        nodes=nodes,
    )


def _racks(question: FacilityQuestion, power: SitePower) -> Racks | None:
    """Racks fed with what was stated; None where nothing was."""
    if question.rack is None:
        return None
    per_rack = int(question.rack.holds(Kilowatts(kw=power.node_kw_at_most, of="node")) + 1e-9)
    return Racks(
        kw_per_rack=question.rack.kw,
        nodes_per_rack=per_rack,
        gpus_per_rack=per_rack * power.node_gpus,
        racks=math.ceil(power.nodes / per_rack) if per_rack else 0,
        headroom_kw=question.rack.kw - per_rack * power.node_kw_at_most,
    )


def _verdict(
    question: FacilityQuestion, node: NodeFacts, cooling: str, power: SitePower, racks: Racks | None
) -> CoolingVerdict:
    """Whether the cooling carries a rack of nodes at their limit, at the inlet temperature that was stated."""
    nodes = max(racks.nodes_per_rack, 1) if racks is not None else 1
    kw = nodes * power.node_kw_at_most
    ways: Mapping[str, Mapping[str, Any]] = facility_data()["cooling"]
    needed = next((name for name, row in ways.items() if kw <= row["kw_per_rack"]), list(ways)[-1])
    if node.cooling == "liquid":
        needed = "liquid"
    row = ways[cooling.lower()]
    usual, most = float(row["kw_per_rack"]), float(row["most_kw_per_rack"])
    if node.cooling == "liquid" and cooling in ("air", "rear-door"):
        enough, reason = False, "the rack is sold with cold plates; air does not reach its cards"
    elif racks is not None and racks.nodes_per_rack == 0:
        enough, reason = (
            False,
            f"a node takes {power.node_kw_at_most:,.1f} kW, more than the {racks.kw_per_rack:g} kW of a rack",
        )
    elif kw > most:
        enough, reason = False, f"{kw:,.1f} kW a rack, and {cooling} carries {usual:g}, {most:g} at most"
    else:
        enough = True
        reason = f"{kw:,.1f} kW a rack; {cooling} usually carries {usual:g}"
        reason += f", {most:g} with contained aisles and cold air to match" if kw > usual else ""
    if (
        question.inlet_c is not None
        and node.inlet_c is not None
        and not node.inlet_c[0] <= question.inlet_c <= node.inlet_c[1]
    ):
        low, high = node.inlet_c
        enough, reason = (
            False,
            f"{question.inlet_c:g} C at the inlet, and the node is made for {low:g} to {high:g} C; {reason}",
        )
    return CoolingVerdict(cooling=cooling, enough=enough, reason=reason, needed=needed)


def _year(question: FacilityQuestion, node: NodeFacts, cooling: str, power: SitePower) -> tuple[Year, Interval]:
    """Energy of the hours under load and of the idle ones, and what it comes to; the price of a kWh beside it."""
    fixed = float(facility_data()["hosts"]["fixed"])
    idle_load = min(question.idle_kw / question.limit_kw, 1.0)
    idle = _plus(
        Interval.exact(question.idle_kw * question.gpus),
        node.beside_kw.scaled(power.nodes * (fixed + (1 - fixed) * idle_load)),
    )
    busy_h, idle_h = question.hours * question.utilisation, question.hours * (1 - question.utilisation)
    it_kwh = _plus(power.it_kw.scaled(busy_h), idle.scaled(idle_h))
    kwh = _times(it_kwh, power.pue)
    stated = question.usd_per_kwh
    price = Interval.exact(stated) if stated is not None else usd_per_kwh(question.region)
    grams = question.grams_per_kwh
    grams = float(named("regions", question.region)["grams_per_kwh"]) if grams is None else grams
    litres = question.litres_per_kwh
    water = Interval.exact(litres) if litres is not None else litres_per_kwh(cooling, question.climate)
    per_million = None
    if question.tokens_per_s is not None and question.tokens_per_s.low > 0:
        rate = question.tokens_per_s
        millions = Interval(value=rate.value, low=rate.low, high=rate.high).scaled(busy_h * 3600 / 1e6)
        per_million = Interval(
            value=kwh.value / millions.value, low=kwh.low / millions.high, high=kwh.high / millions.low
        )
    return Year(
        it_kwh=it_kwh,
        facility_kwh=kwh,
        electricity_usd=_times(kwh, price),
        co2_tonnes=kwh.scaled(grams / _TONNE),
        water_m3=_times(it_kwh, water).scaled(1 / _KG),
        kwh_per_million_tokens=per_million,
        co2_grams_per_million_tokens=None if per_million is None else per_million.scaled(grams),
    ), price


def _saved(question: FacilityQuestion, power: SitePower, year: Year, price: Interval) -> PueSaved | None:
    """``(before − after) · kWh of IT``: 0.14 of 2,038 kW over a year at 0.8 a kWh are 2 millions."""
    if question.better_pue is None:
        return None
    kwh = (power.pue.value - question.better_pue) * year.it_kwh.value
    grams = year.co2_tonnes.value / year.facility_kwh.value if year.facility_kwh.value else 0.0
    return PueSaved(
        before=power.pue.value, after=question.better_pue, kwh=kwh, usd=kwh * price.value, co2_tonnes=kwh * grams
    )


def _heat(question: FacilityQuestion, usd_per_gpu_hour: float | None) -> HeatCost | None:
    """Tokens that are kept at lower clocks: as many as clocks where arithmetic decides, most of them where memory does."""
    share = question.clock_share
    if share is None:
        return None
    high = 1 - (1 - share) * _MEMORY_LOSES
    kept = Interval(value=(share + high) / 2, low=share, high=high)
    usd = None
    if usd_per_gpu_hour is not None:
        paid = usd_per_gpu_hour * question.gpus * question.hours * question.utilisation
        usd = Interval(value=paid * (1 - kept.value), low=paid * (1 - kept.high), high=paid * (1 - kept.low))
    return HeatCost(clock_share=share, kept=kept, usd_per_year=usd)


def _warnings(question: FacilityQuestion, node: NodeFacts) -> list[PlanWarning]:
    found = []
    if question.usd_per_kwh is None:
        message = (
            f"price of electricity in {question.region}: a range for large users; state your own with --usd-per-kwh"
        )
        found.append(PlanWarning(code="electricity-price", message=message))
    if question.card_kw.value > question.limit_kw * 1.001:
        message = (
            f"{question.card_kw.value * 1e3:,.0f} W a GPU is more than the {question.limit_kw * 1e3:,.0f} W that"
            f" {question.card.name} may draw as sold"
        )
        found.append(PlanWarning(code="beyond-limit", message=message))
    if question.gpus < node.gpus:
        message = (
            f"the node is sold with {node.gpus} GPUs, and all that stands beside them is counted for"
            f" {counted(question.gpus, 'GPU')}; ask about {node.gpus} where others use the rest"
        )
        found.append(PlanWarning(code="node-shared", message=message))
    if node.beside_kw.low < node.beside_kw.high:
        found.append(
            PlanWarning(code="node-assumed", message=f"what stands beside the cards is assumed: {node.source}")
        )
    return found
