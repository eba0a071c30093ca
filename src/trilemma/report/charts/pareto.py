"""The Pareto front of a search: tokens a second for each GPU against tokens a second for each reader."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trilemma.hardware.cluster import Cluster
from trilemma.report.charts.estimate import engine_of
from trilemma.report.charts.theme import (
    BLUE,
    GREY,
    INK,
    MISSED,
    VERMILION,
    WIDTH,
    Spec,
    data,
    error_bars,
    heading,
    page,
    plain,
    pointed_at,
    words_panel,
)
from trilemma.report.plan_words import load_words, weights_words
from trilemma.report.plans import nothing_found, search_title
from trilemma.search.found import Found
from trilemma.search.pareto import pareto_front
from trilemma.search.result import SearchResult

#: Pixels: height of the picture, and diameter of a plan's disc.
_HEIGHT, _DISC = 380, 18
_FRONT = pointed_at(("user", "tokens/s for each user", ",.0f"), ("gpu", "tokens/s for each GPU", ",.0f"))
_PLAN = pointed_at(
    ("layout", "layout", ""), ("weights", "weights", ""), ("cache", "KV cache", ""), ("requests", "at once", ""),
    ("gpu_range", "tokens/s for each GPU", ""), ("user_range", "tokens/s for each user", ""),
)  # fmt: skip
_COLUMNS = (
    ("rank", "", 0),
    ("layout", "layout", 28),
    ("weights", "weights", 245),
    ("cache", "KV cache", 345),
    ("requests", "at once", 430),
    ("gpu", "tokens/s/GPU", 490),
    ("user", "tokens/s/user", 630),
)


def pareto_chart(result: SearchResult, *, model: str, cluster: Cluster, unlimited: SearchResult | None = None) -> Spec:
    """The plans shown with their 90 % intervals, the front they lie on or below, and the target.

    ``unlimited`` is the same search without targets: what they cost.
    """
    panels = [_front(result, unlimited), _table(result)] if result.plans else [words_panel(nothing_found(result))]
    title = search_title(result, model=model, cluster=cluster)
    if result.plans:
        title += f" · {engine_of(result.plans[0].estimate)}"
    words = [load_words(result.workload), *result.assumed]
    if not result.meets_targets:
        words.append("no plan meets the targets; these come nearest" if result.plans else nothing_found(result))
    return page(title, words, panels)


def _front(result: SearchResult, unlimited: SearchResult | None) -> Spec:
    best = list(_plans(result))
    front, free = _points(result), []
    if unlimited is not None and result.meets_targets:
        free = _unbeaten([*_points(unlimited), *front])
    x: Spec = {
        "field": "user",
        "type": "quantitative",
        "title": "tokens/s for each user (1 / mean TPOT)",
        "scale": {"zero": True},
        "axis": {"tickCount": 8},
    }
    y: Spec = {
        "field": "gpu",
        "type": "quantitative",
        "title": "output tokens/s for each GPU",
        "scale": {"zero": True},
        "axis": {"tickCount": 8},
    }
    line, disc = (BLUE, VERMILION) if result.meets_targets else (GREY, "#6B6B6B")
    layers: list[Spec] = [
        _line(free, x, y, {"color": "#BDBDBD", "strokeDash": [4, 3], "point": {"color": "#BDBDBD", "size": 24}}),
        _line(front, x, y, {"color": line, "strokeWidth": 2, "point": {"color": line, "size": 45}}),
        *_target(result),
        {"data": data(best), "layer": [*error_bars("gpu", "y", along=x), *error_bars("user", "x", along=y)]},
        *(_disc(plan, x, y, disc) for plan in reversed(best)),
        *_ranks(best, x, y, disc),
    ]
    targets = result.workload.tpot_ms is not None or result.workload.ttft_ms is not None
    notes = "grey: plans that miss the targets"
    if result.meets_targets:
        notes = f"blue: Pareto front{' of the plans that meet the targets' if targets else ''}"
    if free:
        notes += "; dashed: front without targets"
    return {
        "title": heading("Throughput against speed for each user", [f"{notes}; whiskers: 90 % intervals"]),
        "width": WIDTH,
        "height": _HEIGHT,
        "layer": layers,
    }


def _line(points: list[dict[str, Any]], x: Spec, y: Spec, look: Spec) -> Spec:
    return {
        "data": data(points),
        "mark": {"type": "line", "interpolate": "step-before", **look},
        "encoding": {"x": x, "y": y, "order": {"field": "user"}, "tooltip": _FRONT},
    }


def _disc(plan: Mapping[str, Any], x: Spec, y: Spec, colour: str) -> Spec:
    """A plan, drawn after those that rank lower."""
    disc: Spec = {
        "type": "point",
        "filled": True,
        "size": _DISC**2,
        "opacity": 1,
        "stroke": "white",
        "strokeWidth": 1.5,
    }
    where: Spec = {"x": x, "y": y, "color": {"value": colour}, "tooltip": _PLAN}
    return {"data": data([plan]), "mark": disc, "encoding": where}


def _ranks(plans: list[dict[str, Any]], x: Spec, y: Spec, colour: str) -> Iterator[Spec]:
    """The rank of each plan on its disc; where discs touch, their ranks in one line above them."""
    for group in _touching(plans):
        alone = len(group) == 1
        at = {**max(group, key=lambda plan: float(plan["gpu"])), "label": ", ".join(plan["label"] for plan in group)}
        beside: Spec = {"dy": 1} if alone else {"dy": -_DISC, "align": "left", "dx": 6}
        mark: Spec = {
            "type": "text", "baseline": "middle", "fontWeight": "bold", "color": "white" if alone else colour, **beside,
        }  # fmt: skip
        where: Spec = {"x": x, "y": y, "text": {"field": "label"}, "tooltip": _PLAN}
        yield {"data": data([at]), "mark": mark, "encoding": where}


def _touching(plans: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """``plans`` in groups whose discs lie on one another, as far as the axes are known before they are drawn."""
    wide, high = (max((float(plan[f"{name}_high"]) for plan in plans), default=1.0) for name in ("user", "gpu"))
    groups: list[list[dict[str, Any]]] = []
    for plan in plans:
        near = [
            group
            for group in groups
            if any(
                math.hypot((one["user"] - plan["user"]) / wide * WIDTH, (one["gpu"] - plan["gpu"]) / high * _HEIGHT)
                < _DISC
                for one in group
            )
        ]
        groups = [group for group in groups if group not in near] + [[*(one for group in near for one in group), plan]]
    return groups


def _points(result: SearchResult) -> list[dict[str, Any]]:
    """Every point of the front that is known, once."""
    found = {(point.tokens_per_s_per_user, point.tokens_per_s_per_gpu) for point in result.front}
    for at in result.pareto:
        row = _figures(result.plans[at])
        if row is not None:
            found.add((row["user"], row["gpu"]))
    return [{"user": user, "gpu": gpu} for user, gpu in sorted(found)]


def _unbeaten(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The front of ``points``: two fronts of which some points are known are compared on the points of both."""
    on_front = pareto_front(np.array([(point["user"], point["gpu"]) for point in points]))
    return sorted((point for point, kept in zip(points, on_front, strict=True) if kept), key=lambda one: one["user"])


def _plans(result: SearchResult) -> Iterator[dict[str, Any]]:
    """The plans that answer the question."""
    for rank, found in enumerate(result.plans[: result.best], 1):
        row = _figures(found)
        if row is not None:
            words = _words(rank, found)
            ranges = {f"{name}_range": words.pop(name) for name in ("gpu", "user")}
            yield row | words | ranges | {"label": str(rank)}


def _figures(found: Found) -> dict[str, Any] | None:
    speed = found.estimate.speed
    if speed is None or speed.tokens_per_s_per_gpu is None or speed.tpot_s is None:
        return None
    rate, tpot = speed.tokens_per_s_per_gpu, speed.tpot_s.interval
    return {
        "user": 1 / tpot.value,
        "user_low": 1 / tpot.high,
        "user_high": 1 / tpot.low,
        "gpu": rate.value,
        "gpu_low": rate.low,
        "gpu_high": rate.high,
    }


def _target(result: SearchResult) -> list[Spec]:
    target = result.workload.tpot_ms
    if target is None:
        return []
    at = data([{"user": 1e3 / target, "text": f"mean TPOT ≤ {target:g} ms →"}])
    where: Spec = {"x": {"field": "user", "type": "quantitative"}}
    return [
        {
            "data": at,
            "mark": {"type": "rule", "strokeDash": [5, 4], "color": MISSED, "strokeWidth": 1.4},
            "encoding": where,
        },
        {
            "data": at,
            "mark": {"type": "text", "align": "left", "baseline": "bottom", "dx": -3, "dy": -4, "color": MISSED},
            "encoding": {**where, "y": {"value": 0}, "text": {"field": "text"}},
        },
    ]


def _table(result: SearchResult) -> Spec:
    """The plans shown in words, below the picture."""
    rows = [_words(rank, found) for rank, found in enumerate(result.plans[: result.best], 1)]
    heads = {key: head for key, head, _ in _COLUMNS}
    order = ["", *(row["rank"] for row in rows)]
    y: Spec = {"field": "rank", "type": "nominal", "sort": order, "axis": None}
    return {
        "width": WIDTH,
        "height": {"step": 19},
        "data": data([{**heads, "rank": "", "head": True}, *({**row, "head": False} for row in rows)]),
        "layer": [
            {
                "mark": {"type": "text", "align": "left"},
                "encoding": {
                    "y": y,
                    "x": {"value": at},
                    "text": {"field": key},
                    "color": {"condition": {"test": "datum.head", "value": "#7A7A7A"}, "value": INK},
                },
            }
            for key, _, at in _COLUMNS
        ],
    }


def _words(rank: int, found: Found) -> dict[str, str]:
    row = _figures(found) or {}

    def figure(name: str) -> str:
        if name not in row:
            return "–"
        return f"{row[name]:,.0f}  ({row[f'{name}_low']:,.0f} – {row[f'{name}_high']:,.0f})"

    return {
        "rank": f"#{rank}",
        "layout": plain(found.estimate.summary, 36),
        "weights": plain(weights_words(found), 18),
        "cache": plain(found.kv_format, 14),
        "requests": f"{found.requests:,}",
        "gpu": figure("gpu"),
        "user": figure("user"),
    }
