"""The roofline of one token: FLOPs a second that each line reaches against what it computes for each byte it moves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.estimate.estimate import OperatorTime
from trilemma.hardware.accelerator import Accelerator
from trilemma.report.charts.theme import (
    BLUE,
    GREEN,
    LEGEND,
    LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    WIDTH,
    Spec,
    data,
    heading,
    pointed_at,
)
from trilemma.report.operators import NAMES

#: Number formats of matrix units that have a ceiling where the card states one, widest first.
_FORMATS = ("bf16", "fp16", "int8", "fp8", "mxfp8", "nvfp4", "mxfp4", "int4")
_NOTE = (
    "lines: datasheet bandwidth and dense peaks; size: share of the token's time;"
    " what waits or runs on the host has no point"
)
#: What runs on the processor knows another roof.
_HOST = "host"
_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


_POINT = pointed_at(
    ("line", "line", ""), ("intensity", "FLOPs for each byte", ",.3~g"), ("tflops", "TFLOP/s", ",.3~g"),
    ("share", "of the token's time", ".0%"),
)  # fmt: skip


def roofline(lines: Sequence[OperatorTime], accelerator: Accelerator) -> Spec | None:
    """A panel with a ceiling for each number format and a point for each line that computes; None where none does."""
    points = [
        _point(line) for line in lines if line.flops and line.bytes and line.seconds > 0 and line.computed_in != _HOST
    ]
    if not points:
        return None
    bandwidth = accelerator.bandwidth_bytes_per_s.value
    ceilings = _ceilings(lines, accelerator)
    ridge = max(peak for _, peak, _ in ceilings) / bandwidth
    low = min(point["intensity"] for point in points) / 4
    high = max(ridge * 6, *(point["intensity"] for point in points)) * 1.5
    floor = min(min(point["tflops"] for point in points), low * bandwidth / 1e12) / 1.6
    top = max(max(point["tflops"] for point in points), max(peak for _, peak, _ in ceilings) / 1e12) * 2.2
    x: Spec = {
        "field": "intensity",
        "type": "quantitative",
        "title": "FLOPs for each byte moved",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"values": decades(low, high), "format": ",~g"},
    }
    y: Spec = {
        "field": "tflops",
        "type": "quantitative",
        "title": "TFLOP/s of one GPU",
        "scale": {"type": "log", "domain": [floor, top], "nice": False},
        "axis": {"values": decades(floor, top), "format": ",~g"},
    }
    roof = data(_roof(ceilings, bandwidth, low, high))
    ends = data(_labels(ceilings, accelerator, low, high))
    return {
        "title": heading(
            "Roofline of one token",
            [_NOTE],
        ),
        "width": WIDTH,
        "height": 340,
        "layer": [
            {
                "data": roof,
                "mark": {"type": "line", "clip": True, "strokeWidth": 1.8},
                "encoding": {
                    "x": x,
                    "y": y,
                    "detail": {"field": "format"},
                    "color": {"condition": {"test": "datum.used", "value": "#555555"}, "value": LIGHT},
                },
            },
            {
                "data": ends,
                "mark": {"type": "text", "align": "right", "baseline": "bottom", "dy": -4, "fontSize": 12},
                "encoding": {
                    "x": x,
                    "y": y,
                    "text": {"field": "text"},
                    "color": {"condition": {"test": "datum.used", "value": "#333333"}, "value": "#8C8C8C"},
                },
            },
            _points(points, x, y),
        ],
    }


def _points(points: Sequence[Mapping[str, Any]], x: Spec, y: Spec) -> Spec:
    """A mark for each line that computes, its area the share of the token's time."""
    names = [point["line"] for point in points]

    def by_line(marks: Sequence[str]) -> Spec:
        return {
            "field": "line",
            "type": "nominal",
            "legend": {"title": None, "columns": 3, **LEGEND},
            "scale": {"domain": names, "range": list(marks[: len(names)])},
        }

    return {
        "data": data(points),
        "mark": {"type": "point", "filled": True, "opacity": 0.9, "stroke": "white", "strokeWidth": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": by_line(_COLOURS),
            "shape": by_line(_SHAPES),
            "tooltip": _POINT,
            "size": {
                "field": "share",
                "type": "quantitative",
                "legend": None,
                "scale": {"type": "sqrt", "domain": [0, 1], "range": [60, 900]},
            },
        },
    }


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from ``low`` to ``high``; 3, 30, … too where these are few."""
    tens = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    if len(tens) >= 3:
        return tens
    between = [3 * 10.0**power for power in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return sorted({*tens, *(one for one in between if low <= one <= high)})


def _point(line: OperatorTime) -> dict[str, Any]:
    assert line.flops is not None
    assert line.bytes is not None
    return {
        "line": f"{NAMES.get(line.name, line.name)} ({line.computed_in})",
        "intensity": line.flops / line.bytes,
        "tflops": line.flops / line.seconds / 1e12,
        "share": line.share,
    }


def _ceilings(lines: Sequence[OperatorTime], accelerator: Accelerator) -> list[tuple[str, float, bool]]:
    """(formats of one peak, FLOP/s, whether a line computes in one of them), lowest first."""
    used = {line.computed_in for line in lines}
    by_peak: dict[float, list[str]] = {}
    for name in (*_FORMATS, *sorted(one for one in used if one)):
        peak = accelerator.peak_flops.get(name)
        if peak is not None and name not in by_peak.setdefault(peak.value, []):
            by_peak[peak.value].append(name)
    found = [(", ".join(names), peak, bool(used & set(names))) for peak, names in sorted(by_peak.items())]
    return found or [("peak", max(peak.value for peak in accelerator.peak_flops.values()), True)]


def _roof(
    ceilings: Sequence[tuple[str, float, bool]], bandwidth: float, low: float, high: float
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"format": "bandwidth", "used": True, "intensity": at, "tflops": at * bandwidth / 1e12}
        for at in (low, max(peak for _, peak, _ in ceilings) / bandwidth)
    ]
    for names, peak, used in ceilings:
        rows += [
            {"format": names, "used": used, "intensity": at, "tflops": peak / 1e12} for at in (peak / bandwidth, high)
        ]
    return rows


def _labels(
    ceilings: Sequence[tuple[str, float, bool]], accelerator: Accelerator, low: float, high: float
) -> list[dict[str, Any]]:
    bandwidth = accelerator.bandwidth_bytes_per_s.value
    rows: list[dict[str, Any]] = [
        {
            "text": f"{names} {peak / 1e12:,.0f}",
            "used": used,
            "intensity": high,
            "tflops": peak / 1e12,
        }
        for names, peak, used in ceilings
    ]
    middle = math.sqrt(low * ceilings[0][1] / bandwidth)
    rows.append(
        {
            "text": f"{bandwidth / 1e12:,.2f} TB/s ",
            "used": True,
            "intensity": middle,
            "tflops": middle * bandwidth / 1e12,
        }
    )
    return rows
