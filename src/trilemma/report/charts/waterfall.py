"""Bars that each begin where the one before ends: what adds up to a total, with the total's own interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trilemma.intervals import Interval
from trilemma.report.charts.theme import MISSED, ROW, WIDTH, Spec, colours, data, error_bars, heading, plain, pointed_at


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One bar: ``value`` on top of those before; ``inner`` is a part of it that is drawn into it."""

    name: str
    value: float
    colour: str
    low: float | None = None
    high: float | None = None
    inner: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A line across all bars, such as the size of the card."""

    name: str
    at: float


def waterfall(
    title: str,
    steps: Sequence[Step],
    *,
    total: str,
    interval: Interval | None,
    unit: str,
    scale: Mapping[str, str],
    legend: str,
    subtitle: Sequence[str] = (),
    marks: Sequence[Mark] = (),
    digits: int = 2,
) -> Spec:
    """A panel with a bar for each of ``steps`` and one for their sum, all on an axis in ``unit``.

    ``scale`` gives the colours of `Step.colour`; ``interval`` is drawn on the total.
    """
    rows = _rows(steps, total, interval, digits)
    order = [row["name"] for row in rows]
    name_axis: Spec = {
        "field": "name",
        "type": "nominal",
        "sort": order,
        "axis": {"title": None, "grid": False, "ticks": False, "domain": False},
    }
    reach = max([row["reach"] for row in rows] + [mark.at for mark in marks])
    value_axis: Spec = {
        "type": "quantitative",
        "title": unit,
        "scale": {"domain": [0, reach * 1.04], "nice": False},
        "axis": {"tickCount": 8},
    }
    bars: Spec = {
        "mark": {"type": "bar", "height": {"band": 0.72}},
        "encoding": {
            "y": name_axis,
            "x": {"field": "start", **value_axis},
            "x2": {"field": "end"},
            "color": colours({**scale, total: "#595959"}, [step.colour for step in steps], legend),
            "tooltip": pointed_at(("name", "line", ""), ("label", unit, ""), ("range", "90 % range", "")),
        },
    }
    layers: list[Spec] = [bars]
    if any(step.inner is not None for step in steps):
        layers.append(
            {
                "transform": [{"filter": {"field": "inner", "valid": True}}],
                "mark": {"type": "bar", "height": {"band": 0.24}, "color": "#1A1A1A", "opacity": 0.75},
                "encoding": {"y": name_axis, "x": {"field": "start", "type": "quantitative"}, "x2": {"field": "inner"}},
            }
        )
    layers += error_bars("value", "x", along=name_axis)
    layers += [
        {
            "mark": {"type": "text", "align": align, "baseline": "middle"},
            "encoding": {"y": name_axis, "x": {"value": WIDTH + at}, "text": {"field": field}},
        }
        for field, align, at in (("label", "right", 64), ("range", "left", 76))
    ]
    layers += [layer for mark in marks for layer in _mark(mark, room=mark.at > reach / 6)]
    return {
        "title": heading(title, subtitle),
        "width": WIDTH,
        "height": {"step": ROW},
        "data": data(rows),
        "layer": layers,
    }


def _rows(steps: Sequence[Step], total: str, interval: Interval | None, digits: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    at = 0.0
    for step in steps:
        row: dict[str, Any] = {"name": plain(step.name, 40), "start": at, "end": at + step.value, "colour": step.colour}
        if step.low is not None and step.high is not None and step.high > step.low:
            row |= {"value_low": at + step.low, "value_high": at + step.high}
        if step.inner is not None:
            row["inner"] = at + step.inner
        rows.append(row | _label(row, step.value, digits, (step.low, step.high)))
        at += step.value
    row = {"name": total, "start": 0.0, "end": at, "colour": total}
    if interval is not None and interval.high > interval.low:
        row |= {"value_low": interval.low, "value_high": interval.high}
    ends = (None, None) if interval is None else (interval.low, interval.high)
    rows.append(row | _label(row, at, digits, ends))
    return rows


def _label(
    row: Mapping[str, Any], value: float, digits: int, ends: tuple[float | None, float | None]
) -> dict[str, Any]:
    """Figures beside the bar, from the numbers themselves: differences of positions round otherwise than the tables do."""
    known = [end for end in ends if end is not None and "value_low" in row]
    return {
        "label": f"{value:,.{digits}f}",
        "range": " – ".join(f"{end:,.{digits}f}" for end in known),
        "reach": max(row["end"], row.get("value_high", 0.0), row.get("inner", 0.0)),
    }


def _mark(mark: Mark, *, room: bool) -> list[Spec]:
    """The line and its name: left of it where there is ``room``, else right."""
    side: Spec = {"align": "right", "dx": -3} if room else {"align": "left", "dx": 3}
    at = data([{"at": mark.at, "text": mark.name}])
    where = {"x": {"field": "at", "type": "quantitative"}}
    return [
        {
            "data": at,
            "mark": {"type": "rule", "strokeDash": [5, 4], "color": MISSED, "strokeWidth": 1.4},
            "encoding": where,
        },
        {
            "data": at,
            "mark": {"type": "text", "baseline": "bottom", "dy": -3, "color": MISSED, **side},
            "encoding": {**where, "y": {"value": 0}, "text": {"field": "text"}},
        },
    ]
