"""How all charts look: one palette that colour-blind readers can tell apart, fonts, titles, and parts that panels share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.errors import shorten
from trilemma.report.notebook import Picture

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

#: Okabe and Ito, "Color Universal Design" (2008).
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
)
GREY, LIGHT, INK = "#8C8C8C", "#D0D0D0", "#333333"
#: Targets and limits.
MISSED = "#B22222"

#: What binds a line → its colour, on every chart.
RESOURCE_COLOURS = {
    "compute": BLUE,
    "memory bandwidth": ORANGE,
    "interconnect": GREEN,
    "host": GREY,
    "capacity": PURPLE,
}
WIDTH = 640
#: Where legends go: the right side of a panel is for its numbers.
LEGEND: Spec = {"orient": "bottom", "direction": "horizontal", "titleOrient": "left", "offset": 10}
ROW = 25
_FONT = "Helvetica, Arial, sans-serif"


def page(title: str, subtitle: Sequence[str], panels: Sequence[Spec]) -> Spec:
    """One chart of ``panels`` below each other under a title."""
    spec: Spec = {
        "$schema": SCHEMA,
        "title": heading(title, subtitle, size=17),
        "vconcat": list(panels),
        "spacing": 30,
        "resolve": {
            "scale": {"color": "independent", "shape": "independent", "size": "independent"},
            "legend": {"color": "independent", "shape": "independent", "size": "independent"},
        },
        "config": _CONFIG,
    }
    return Picture(spec)


def heading(text: str, subtitle: Sequence[str] = (), *, size: int = 14) -> Spec:
    """A title over lines of subtitle; text from outside is cut and kept to one line."""
    return {
        "text": plain(text),
        "subtitle": [plain(line) for line in subtitle],
        "anchor": "start",
        "frame": "group",
        "fontSize": size,
        "subtitleFontSize": 12,
        "subtitlePadding": 5,
        "offset": 20 if size > 14 else 12,
    }


def plain(text: str, most: int = 150) -> str:
    """``text`` on one line without control characters: names come from files."""
    return shorten("".join(sign if sign.isprintable() else " " for sign in text), most=most)


def data(rows: Sequence[Mapping[str, Any]]) -> Spec:
    return {"values": [dict(row) for row in rows]}


def colours(scale: Mapping[str, str], used: Sequence[str], title: str | None = None) -> Spec:
    """The ``colour`` field on its fixed colours; the legend names those in use."""
    names = [name for name in scale if name in set(used)]
    return {
        "field": "colour",
        "type": "nominal",
        "scale": {"domain": list(scale), "range": list(scale.values())},
        "legend": {"title": title, "symbolType": "square", "values": names, **LEGEND},
    }


def pointed_at(*said: tuple[str, str, str]) -> list[Spec]:
    """What a live chart says of a mark under the pointer: (field, name, format of a number or nothing) line by line."""
    return [
        {"field": field, "title": name, **({"type": "quantitative", "format": form} if form else {"type": "nominal"})}
        for field, name, form in said
    ]


def words_panel(text: str) -> Spec:
    """A sentence where there is nothing to draw: an empty frame would read as figures at 0."""
    return {
        "width": WIDTH,
        "height": 30,
        "data": data([{"text": plain(text)}]),
        "mark": {"type": "text", "align": "left", "fontSize": 14},
        "encoding": {"x": {"value": 0}, "text": {"field": "text"}},
    }


def error_bars(field: str, axis: str, *, along: Mapping[str, Any]) -> list[Spec]:
    """A 90 % interval from ``low`` to ``high`` on ``axis`` with ticks at its ends; ``along`` places it on the other axis."""
    low, high = f"{field}_low", f"{field}_high"
    other = "y" if axis == "x" else "x"
    where = {other: dict(along)}
    known = [{"filter": {"field": low, "valid": True}}]

    def at(name: str) -> Spec:
        return {"field": name, "type": "quantitative"}

    line: Spec = {
        "transform": known,
        "mark": {"type": "rule", "color": INK, "strokeWidth": 1.3},
        "encoding": {**where, axis: at(low), f"{axis}2": {"field": high}},
    }
    ends: list[Spec] = [
        {
            "transform": known,
            "mark": {
                "type": "tick",
                "color": INK,
                "thickness": 1.3,
                "size": 9,
                "orient": "vertical" if axis == "x" else "horizontal",
            },
            "encoding": {**where, axis: at(name)},
        }
        for name in (low, high)
    ]
    return [line, *ends]


_CONFIG: Spec = {
    "font": _FONT,
    "background": "white",
    "padding": 18,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 9,
        "labelColor": INK,
        "titleColor": INK,
        "gridColor": "#EBEBEB",
        "domainColor": "#999999",
        "tickColor": "#999999",
        "labelLimit": 260,
        "labelPadding": 6,
    },
    "legend": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 240,
        "labelColor": INK,
    },
    "title": {"color": INK, "subtitleColor": "#595959", "fontWeight": "bold"},
    "text": {"fontSize": 12, "color": INK},
}
