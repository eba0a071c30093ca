"""The chart of a cluster over time: shares in use by groups of nodes, and what jobs wait for."""

from __future__ import annotations

from trilemma.report.charts.theme import BLUE, VERMILION, WIDTH, Spec, data, heading, page, plain
from trilemma.simulation.cluster.outcome import ClusterSimulation, SpaceTime


def cluster_chart(found: ClusterSimulation) -> Spec | None:
    """Space above, time along: a row a rack (or node), darker the more of its cards are in use; below it what waits."""
    if found.picture is None:
        return None
    outcome = found.outcome
    title = plain(f"{found.jobs:,} jobs on {outcome.nodes:,} nodes, {outcome.gpus:,.0f} GPUs · {outcome.name}", 90)
    hours = outcome.gpu_hours
    scale = max(hours.capacity, 1e-12)
    below = [
        f"allocated {outcome.allocated_share:.1%} of capacity, fragmented {hours.fragmented / scale:.1%},"
        f" lost {hours.lost / scale:.1%}"
    ]
    return page(title, below, [_space(found.picture), _waiting(found.picture)])


def _space(picture: SpaceTime) -> Spec:
    rows = [{"group": group, "from": begin, "to": end, "share": share} for group, begin, end, share in picture.rows]
    return {
        "title": heading("Cards in use", ["share of the cards of each group of nodes; white is idle or down"]),
        "width": WIDTH,
        "height": max(90, 11 * len(picture.groups)),
        "data": data(rows),
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": "from", "type": "quantitative", "title": "hours", "scale": {"nice": False}},
            "x2": {"field": "to"},
            "y": {"field": "group", "type": "nominal", "title": None, "sort": list(picture.groups)},
            "color": {
                "field": "share",
                "type": "quantitative",
                "title": "in use",
                "scale": {"domain": [0, 1], "range": ["#FFFFFF", BLUE], "interpolate": "rgb"},
                "legend": {"format": "%"},
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
            "x": {"field": "from", "type": "quantitative", "title": "hours", "scale": {"nice": False}},
            "y": {"field": "gpus", "type": "quantitative", "title": "GPUs"},
        },
    }
