"""The chart of a cluster over time: shares in use by groups of nodes, by queue, what jobs wait for, and where the hours went."""

from __future__ import annotations

from trilemma.report.charts.theme import (
    BLUE,
    GREEN,
    GREY,
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
    page,
    plain,
)
from trilemma.report.cluster import jobs_of
from trilemma.simulation.cluster.outcome import ClusterSimulation, SpaceTime

#: Gang sizes and queues whose waits are drawn.
_MOST_WAITS = 16
_QUEUE_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
_STATES = {
    "useful": BLUE, "lost": VERMILION, "fragmented": ORANGE, "idle: too little free": GREY, "idle: nobody waits": LIGHT,
}  # fmt: skip


def cluster_chart(found: ClusterSimulation) -> Spec | None:
    """Space above, time along: a row a rack (or node), darker the more of its cards are in use; below it the queues, what waits,
    how long, and where the hours went."""
    picture = found.picture
    if picture is None:
        return None
    outcome = found.outcome
    title = plain(f"{found.jobs:,} jobs on {outcome.nodes:,} nodes, {outcome.gpus:,.0f} GPUs · {outcome.name}", 90)
    hours = outcome.gpu_hours
    scale = max(hours.capacity, 1e-12)
    below = [
        f"allocated {outcome.allocated_share:.1%} of capacity, fragmented {hours.fragmented / scale:.1%},"
        f" lost {hours.lost / scale:.1%}"
    ]
    panels = [_hours(found), _space(picture)]
    panels += [_queues(picture)] if picture.queues else []
    panels += [_waiting(picture)]
    panels += [_waits(found)] if len(outcome.waits_s) > 1 else []
    return page(title, below, panels)


def _end(picture: SpaceTime) -> float:
    return max((end for _, end, _ in picture.waiting), default=0.0)


def _along(picture: SpaceTime) -> Spec:
    """Time, the same in every panel."""
    return {
        "field": "from",
        "type": "quantitative",
        "title": "hours",
        "scale": {"domain": [0, _end(picture)], "nice": False},
    }


def _hours(found: ClusterSimulation) -> Spec:
    hours = found.outcome.gpu_hours
    idle = (hours.of_idle.get(name, 0.0) for name in ("too_little_free", "nobody_waits"))
    values = dict(zip(_STATES, (hours.useful, hours.lost, hours.fragmented, *idle), strict=True))
    scale = max(hours.capacity, 1e-12)
    rows = [
        {"state": name, "hours": value, "share": value / scale, "at": at}
        for at, (name, value) in enumerate(values.items())
    ]
    return {
        "title": heading("Where the hours of the cards went"),
        "width": WIDTH,
        "height": 34,
        "data": data(rows),
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {
                "field": "share",
                "type": "quantitative",
                "stack": "zero",
                "title": "of capacity",
                "axis": {"format": "%"},
                "scale": {"domain": [0, 1]},
            },
            "order": {"field": "at"},
            "color": {
                "field": "state",
                "type": "nominal",
                "title": None,
                "scale": {"domain": list(_STATES), "range": list(_STATES.values())},
                "legend": {**LEGEND, "columns": 5},
            },
        },
    }


def _space(picture: SpaceTime) -> Spec:
    rows = [{"group": group, "from": begin, "to": end, "share": share} for group, begin, end, share in picture.rows]
    return {
        "title": heading("Cards in use", ["share of the cards of each group of nodes; white is idle or down"]),
        "width": WIDTH,
        "height": max(90, 11 * len(picture.groups)),
        "data": data(rows),
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": _along(picture),
            "x2": {"field": "to"},
            "y": {"field": "group", "type": "nominal", "title": None, "sort": list(picture.groups)},
            "color": {
                "field": "share",
                "type": "quantitative",
                "title": "in use",
                "scale": {"domain": [0, 1], "range": ["#FFFFFF", BLUE], "interpolate": "rgb"},
                "legend": {**LEGEND, "format": "%"},
            },
        },
    }


def _queues(picture: SpaceTime) -> Spec:
    names = list(dict.fromkeys(name for name, *_ in picture.queues))
    rows = [
        {"queue": name, "from": begin, "gpus": gpus, "at": names.index(name)} for name, begin, _, gpus in picture.queues
    ]
    return {
        "title": heading("GPUs that queues hold"),
        "width": WIDTH,
        "height": 140,
        "data": data(rows),
        "mark": {"type": "area", "interpolate": "step-after", "tooltip": True},
        "encoding": {
            "x": _along(picture),
            "y": {"field": "gpus", "type": "quantitative", "stack": "zero", "title": "GPUs"},
            "order": {"field": "at"},
            "color": {
                "field": "queue",
                "type": "nominal",
                "title": None,
                "scale": {"domain": names, "range": list(_QUEUE_COLOURS[: len(names)])},
                "legend": LEGEND,
            },
        },
    }


def _waiting(picture: SpaceTime) -> Spec:
    rows = [{"from": begin, "gpus": gpus} for begin, _, gpus in picture.waiting]
    return {
        "title": heading("GPUs that jobs wait for"),
        "width": WIDTH,
        "height": 120,
        "data": data(rows),
        "mark": {"type": "area", "interpolate": "step-after", "color": VERMILION, "opacity": 0.7},
        "encoding": {
            "x": _along(picture),
            "y": {"field": "gpus", "type": "quantitative", "title": "GPUs"},
        },
    }


def _waits(found: ClusterSimulation) -> Spec:
    """From the middle wait to what nine of ten jobs wait at most, by gang size and queue."""
    told = list(found.outcome.waits_s.items())[:_MOST_WAITS]
    names = [plain(jobs_of(name), 30) for name, _ in told]
    rows = [
        {"group": name, "p50": one["p50"] / 3600, "p90": one["p90"] / 3600, "jobs": one["jobs"]}
        for name, (_, one) in zip(names, told, strict=True)
    ]
    ticks = {"tickCount": 8, "labelOverlap": True}
    along = {"field": "p50", "type": "quantitative", "title": "hours", "scale": {"nice": True}, "axis": ticks}
    down = {"field": "group", "type": "nominal", "title": None, "sort": names}
    return {
        "title": heading("How long jobs waited", ["from the middle job (dot) to what nine of ten waited at most"]),
        "width": WIDTH,
        "height": 17 * len(rows),
        "data": data(rows),
        "layer": [
            {
                "mark": {"type": "bar", "height": 7, "color": SKY, "tooltip": True},
                "encoding": {"x": along, "x2": {"field": "p90"}, "y": down},
            },
            {"mark": {"type": "point", "filled": True, "color": BLUE, "size": 45}, "encoding": {"x": along, "y": down}},
        ],
    }
