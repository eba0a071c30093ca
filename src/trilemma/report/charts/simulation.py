"""The chart of a simulation of serving: latency against load with its knee, distributions, queue and cache over time."""

from __future__ import annotations

from typing import Any

from trilemma.report.charts.theme import (
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    ORANGE,
    PURPLE,
    VERMILION,
    WIDTH,
    Spec,
    data,
    heading,
    page,
    plain,
)
from trilemma.simulation.serving.outcome import LoadCurve, ServingSimulation

_FIGURES = {
    "ttft_ms": ("first token", BLUE),
    "tpot_ms": ("time per token", ORANGE),
    "itl_ms": ("between tokens", GREEN),
    "e2e_ms": ("whole request", PURPLE),
}
_HEIGHT = 220
#: Of the highest rate: where the axis ends, so that what is written right of a line has room.
_ROOM = 1.15


def simulation_chart(found: ServingSimulation) -> Spec:
    """Panels below each other: latency against load where it was asked for, distributions, the engine over time."""
    inputs = found.inputs
    title = plain(
        f"{inputs['model']} on {inputs['gpus']} x {inputs['gpu']} · {inputs['engine']} {inputs['version']}", 90
    )
    below = [
        plain(str(inputs["traffic"]), 110),
        f"{found.completed:,} of {found.requests:,} requests, {found.output_tokens_per_s:,.0f} output tokens a second",
    ]
    curve = [_load(found.load_curve)] if found.load_curve is not None else []
    return page(title, below, [*curve, _distributions(found), *_over_time(found)])


def _load(curve: LoadCurve) -> Spec:
    rows: list[dict[str, Any]] = []
    for point in curve.points:
        for what, figures in (("first token", point.metrics.ttft_ms), ("time per token", point.metrics.tpot_ms)):
            if figures is not None:
                rows += [
                    {"rate": point.requests_per_s, "ms": getattr(figures, name), "figure": f"{what}, {name.upper()}"}
                    for name in ("p50", "p99")
                ]
    colours = {
        "first token, P50": "#7FB8DA",
        "first token, P99": BLUE,
        "time per token, P50": "#F4CF7A",
        "time per token, P99": ORANGE,
    }
    rates = sorted(
        [
            (curve.knee_requests_per_s, f"knee {curve.knee_requests_per_s:.3g}/s"),
            (curve.saturation_requests_per_s, f"saturated {curve.saturation_requests_per_s:.3g}/s"),
        ]
    )
    marks = [{"rate": rate, "label": label} for rate, label in rates]
    last = max(rates[-1][0], *(one.requests_per_s for one in curve.points))
    scale = {"domain": [0, last * _ROOM], "nice": False}
    x: Spec = {"field": "rate", "type": "quantitative", "title": "requests arriving a second", "scale": scale}
    return {
        "title": heading(
            "Latency against load", ["the same requests at nine rates; beyond saturation the queue grows without end"]
        ),
        "width": WIDTH,
        "height": _HEIGHT,
        "layer": [
            {
                "data": data(rows),
                "mark": {"type": "line", "point": True},
                "encoding": {
                    "x": x,
                    "y": {"field": "ms", "type": "quantitative", "title": "milliseconds", "scale": {"type": "log"}},
                    "color": _colour("figure", colours),
                },
            },
            {
                "data": data(marks),
                "mark": {"type": "rule", "color": VERMILION, "strokeDash": [4, 3]},
                "encoding": {"x": x},
            },
            # above the plot, away from each other: neither crosses a line, however near both are
            *(_mark_label(mark, x, align=align) for mark, align in zip(marks, ("right", "left"), strict=True)),
        ],
    }


def _mark_label(mark: dict[str, Any], x: Spec, *, align: str) -> Spec:
    return {
        "data": data([mark]),
        "mark": {"type": "text", "align": align, "dx": 3 if align == "left" else -3, "color": VERMILION},
        "encoding": {"x": x, "y": {"value": -7}, "text": {"field": "label"}},
    }


def _distributions(found: ServingSimulation) -> Spec:
    rows = [
        {"ms": max(value, 1e-3), "share": share, "figure": label}
        for name, (label, _) in _FIGURES.items()
        for share, value in found.cdf_ms.get(name, ())
    ]
    return {
        "title": heading(
            "How many requests are as fast", ["share of requests (of gaps between tokens) at most so long"]
        ),
        "width": WIDTH,
        "height": _HEIGHT,
        "data": data(rows),
        "mark": {"type": "line", "interpolate": "monotone"},
        "encoding": {
            "x": {"field": "ms", "type": "quantitative", "title": "milliseconds", "scale": {"type": "log"}},
            "y": {"field": "share", "type": "quantitative", "title": "share", "axis": {"format": "%"}},
            "color": _colour("figure", dict(_FIGURES.values())),
        },
    }


def _over_time(found: ServingSimulation) -> list[Spec]:
    if len(found.series) < 2:
        return []
    rows = [
        {"s": at, "requests": value, "what": what}
        for at, running, waiting, _ in found.series
        for what, value in (("running", running), ("waiting", waiting))
    ]
    held = [{"s": at, "share": share} for at, _, _, share in found.series]
    first = " of the first engine" if found.engines > 1 else ""
    x: Spec = {"field": "s", "type": "quantitative", "title": "seconds"}
    return [
        {
            "title": heading(f"Requests over time{first}"),
            "width": WIDTH,
            "height": 140,
            "data": data(rows),
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.2},
            "encoding": {
                "x": x,
                "y": {"field": "requests", "type": "quantitative", "title": "requests"},
                "color": _colour("what", {"running": BLUE, "waiting": VERMILION}),
            },
        },
        {
            "title": heading(f"Cache held{first}"),
            "width": WIDTH,
            "height": 90,
            "data": data(held),
            "mark": {"type": "area", "interpolate": "step-after", "color": GREY, "opacity": 0.6},
            "encoding": {
                "x": x,
                "y": {"field": "share", "type": "quantitative", "title": "share", "axis": {"format": "%"}},
            },
        },
    ]


def _colour(field: str, colours: dict[str, str]) -> Spec:
    return {
        "field": field,
        "type": "nominal",
        "legend": {"title": None, **LEGEND},
        "scale": {"domain": list(colours), "range": list(colours.values())},
    }
