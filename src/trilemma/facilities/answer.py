"""What a facility gives for so many cards under a load, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from trilemma.columns import column
from trilemma.data.digest import Made, made_by
from trilemma.errors import PlanWarning
from trilemma.intervals import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class SitePower:
    """Kilowatts: of the cards under the load, of what is beside them, of all IT, of the building; and a node at most."""

    cards_kw: Interval = field(metadata=column("cards_kw{}", spread=True))
    beside_kw: Interval = field(metadata=column("beside_kw{}", spread=True))
    it_kw: Interval = field(metadata=column("it_kw{}", spread=True))
    pue: Interval = field(metadata=column("pue{}", spread=True))
    facility_kw: Interval = field(metadata=column("facility_kw{}", spread=True))
    node_kw_at_most: float
    node_gpus: int
    nodes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Racks:
    """How nodes at their limit fill racks that are fed and cooled with ``kw_per_rack``."""

    kw_per_rack: float
    nodes_per_rack: int
    gpus_per_rack: int
    racks: int
    headroom_kw: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CoolingVerdict:
    """Whether a way of cooling carries a rack, why, and the first that does."""

    cooling: str
    enough: bool
    reason: str
    needed: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Year:
    """A year: kilowatt-hours of IT and building, dollars of electricity, tonnes of CO2 equivalents, cubic metres of water."""

    it_kwh: Interval = field(metadata=column("it_kwh{}", spread=True))
    facility_kwh: Interval = field(metadata=column("facility_kwh{}", spread=True))
    electricity_usd: Interval = field(metadata=column("electricity_usd{}", spread=True))
    co2_tonnes: Interval = field(metadata=column("co2_tonnes{}", spread=True))
    water_m3: Interval = field(metadata=column("water_m3{}", spread=True))
    kwh_per_million_tokens: Interval | None = field(
        default=None, metadata=column("kwh_per_million_tokens{}", spread=True)
    )
    co2_grams_per_million_tokens: Interval | None = field(
        default=None, metadata=column("co2_grams_per_million_tokens{}", spread=True)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PueSaved:
    """What a year saves where the building comes down from one PUE to another."""

    before: float
    after: float
    kwh: float
    usd: float
    co2_tonnes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatCost:
    """What clocks that fall cost: the share of tokens that is kept (from work that is all clocks to work that waits for memory),
    and the dollars of a year that are paid for the rest."""

    clock_share: float
    kept: Interval = field(metadata=column("tokens_kept{}", spread=True))
    usd_per_year: Interval | None = field(default=None, metadata=column("usd_per_year{}", spread=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class RentOrBuy:
    """Owning beside renting: dollars of a GPU-hour used, of the years, and the months after which buying is the cheaper."""

    own_usd_per_gpu_hour: float
    rent_usd_per_gpu_hour: float
    own_usd: float
    rent_usd: float
    years: float
    break_even_months: float | None
    break_even_utilisation: float | None
    cheaper: Literal["own", "rent"]
    parts_usd: Mapping[str, float] = field(metadata=column(exact=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Facility:
    """The whole answer."""

    COLUMNS: ClassVar = {
        "schema": {}, "made_by": column(exact=True), "inputs": column(exact=True), "power": {}, "racks": {}, "cooling": {},
        "year": {}, "pue_saved": {}, "heat": {}, "rent_or_buy": {}, "warnings": column(keep="empty"),
    }  # fmt: skip

    inputs: Mapping[str, Any]
    power: SitePower
    racks: Racks | None
    cooling: CoolingVerdict
    year: Year
    pue_saved: PueSaved | None = None
    heat: HeatCost | None = None
    rent_or_buy: RentOrBuy | None = None
    warnings: tuple[PlanWarning, ...] = ()

    @property
    def schema(self) -> Literal["trilemma/facility@1"]:
        """How documents of this form are called."""
        return "trilemma/facility@1"

    @property
    def made_by(self) -> Made:
        """Which version of the code and which facts made it."""
        return made_by()
