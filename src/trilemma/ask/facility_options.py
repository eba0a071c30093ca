"""Every option of a question about a building."""

from __future__ import annotations

from trilemma.ask.options import Option
from trilemma.ask.reading import as_given, number, text, whole_number

FACILITY = "facility"
_OF = (FACILITY,)
FACILITY_OPTIONS: tuple[Option, ...] = (
    Option(name="plan", of=_OF, read=whole_number, metavar="N", group="load", default=1,
           help="which plan of a document of several (default 1)"),
    Option(name="watts", of=_OF, read=as_given, metavar="W/GPU", group="load",
           help="what a GPU draws under the load, such as 540W (default: as the plan says; without one up to the board's limit)"),
    Option(name="utilisation", of=_OF, read=number, metavar="SHARE", group="load", default=1.0,
           help="part of the hours with work; cards idle in the rest (default 1)"),
    Option(name="hours", of=_OF, read=number, metavar="H", group="load", default=8760.0, help="hours of a year (8,760)"),
    Option(name="tokens_per_s", of=_OF, read=number, metavar="N", group="load",
           help="tokens a second of all GPUs under the load (default: as the plan says)"),
    Option(name="cooling", of=_OF, read=text, group="building", choices=("air", "rear-door", "liquid", "immersion"),
           help="how racks are cooled (default: as the node is sold)"),
    Option(name="climate", of=_OF, read=text, group="building", default="temperate",
           choices=("cold", "temperate", "hot", "hot-humid"), help="where it stands (default temperate)"),
    Option(name="pue", of=_OF, read=number, metavar="X", group="building",
           help="power of the building over that of its IT (default: a range by cooling and climate)"),
    Option(name="better_pue", of=_OF, read=number, metavar="X", group="building",
           help="another PUE, to see what it saves in a year"),
    Option(name="rack_kw", of=_OF, read=as_given, metavar="KW/RACK", group="building",
           help="what a rack is fed and cooled with, such as 40kW"),
    Option(name="inlet", of=_OF, read=number, metavar="C", group="building", help="degrees Celsius at the inlet of a node"),
    Option(name="region", of=_OF, read=text, metavar="NAME", group="grid", default="world",
           help="whose grid: world, us, germany, france, china … (default world)"),
    Option(name="usd_per_kwh", of=_OF, read=number, metavar="USD", group="grid",
           help="price of electricity (default: a range of the region)"),
    Option(name="grams_per_kwh", of=_OF, read=number, metavar="G", group="grid",
           help="CO2 equivalents of the grid (default: those of the region)"),
    Option(name="litres_per_kwh", of=_OF, read=number, metavar="L", group="grid",
           help="water that evaporates for a kWh of IT (default: by cooling and climate)"),
    Option(name="clocks", of=_OF, read=number, metavar="SHARE", group="heat",
           help="the share of their clocks that hot cards keep, to see the tokens and dollars that are lost"),
    Option(name="derate", of=_OF, read=text, metavar="C=SHARE,…", group="heat",
           help="clocks kept by inlet temperature, from your own telemetry, such as 27=1,35=0.93; with --inlet"),
    Option(name="rent", of=_OF, read=number, metavar="USD", group="money",
           help="dollars of a rented GPU and hour (default: the catalogue's)"),
    Option(name="capex", of=_OF, read=number, metavar="USD", group="money",
           help="dollars of a bought GPU with its part of node and network: rent or buy"),
    Option(name="years", of=_OF, read=number, metavar="N", group="money", help="years of use (default 4)"),
    Option(name="interest", of=_OF, read=number, metavar="SHARE", group="money", help="interest a year (default 0.08)"),
    Option(name="upkeep", of=_OF, read=number, metavar="SHARE", group="money",
           help="staff, space and repair a year, as a part of the price (default 0.06)"),
    Option(name="resale", of=_OF, read=number, metavar="SHARE", group="money",
           help="what is left of the price after the years (default 0.15)"),
)  # fmt: skip
