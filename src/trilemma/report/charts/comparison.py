"""GPUs side by side: bars of throughput, latency and price with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trilemma.estimate.estimate import Estimate
from trilemma.intervals import Interval
from trilemma.report.charts.estimate import engine_of
from trilemma.report.charts.theme import (
    BLUE,
    LEGEND,
    MISSED,
    ORANGE,
    ROW,
    Spec,
    data,
    error_bars,
    heading,
    page,
    plain,
    pointed_at,
    words_panel,
)
from trilemma.report.comparison import cards_words, missing_words, plan_words, shown_plans
from trilemma.report.plan_words import load_words
from trilemma.search.compare import Candidate, CardComparison

_KINDS = {"as published": BLUE, "best precision": ORANGE}
_WIDTH = 230
#: Most ticks of a panel beside the one at 0, so that each has room for its figure.
_MOST_TICKS = 4


def _per_gpu(estimate: Estimate) -> Interval | None:
    return estimate.speed.tokens_per_s_per_gpu if estimate.speed else None


def _tpot(estimate: Estimate) -> Interval | None:
    tpot = estimate.speed.tpot_s if estimate.speed else None
    return tpot.interval.scaled(1e3) if tpot else None


def _ttft(estimate: Estimate) -> Interval | None:
    ttft = estimate.speed.ttft_s if estimate.speed else None
    return ttft.interval.scaled(1e3) if ttft else None


def _dollars(estimate: Estimate) -> Interval | None:
    return estimate.usd_per_million_tokens


_FIGURES: tuple[tuple[str, str, Callable[[Estimate], Interval | None]], ...] = (
    ("Throughput", "output tokens/s for each GPU", _per_gpu),
    ("Price", "$ for a million output tokens", _dollars),
    ("Mean time per output token", "milliseconds", _tpot),
    ("Mean time to first token", "milliseconds", _ttft),
)


def comparison_chart(comparison: CardComparison, *, model: str) -> Spec:
    """A row for each plan of each GPU, a panel for each figure; what does not fit is named above."""
    rows = [row for candidate in comparison.candidates for row in _rows(candidate)]
    words = [load_words(comparison.workload), *comparison.assumed, "whiskers: 90 % intervals; prices: public range"]
    missing = [(candidate, missing_words(candidate)) for candidate in comparison.candidates]
    words += [f"{cards_words(candidate)}: {text}" for candidate, text in missing if text is not None]
    order = [row["name"] for row in rows]
    panels = [_panel(rows, order, figure, at=at, targets=comparison) for at, figure in enumerate(_FIGURES)]
    pairs: list[Spec] = [{"hconcat": panels[at : at + 2], "spacing": 26} for at in (0, 2)]
    title = f"{model}: the best plan on each GPU"
    if rows:
        title += f" · {engine_of(rows[0]['estimate'])}"
    return page(title, words, pairs if rows else [words_panel("no plan fits any of these GPUs")])


def _panel(
    rows: list[dict[str, Any]],
    order: list[str],
    figure: tuple[str, str, Callable[[Estimate], Interval | None]],
    *,
    at: int,
    targets: CardComparison,
) -> Spec:
    title, unit, of = figure
    values = [value for row in rows if (value := _value(row, of(row["estimate"]))) is not None]
    reach = max([one["value_high"] for one in values], default=0.0)
    y: Spec = {
        "field": "name",
        "type": "nominal",
        "scale": {"domain": order},
        "axis": {
            "title": None,
            "grid": False,
            "ticks": False,
            "domain": False,
            "labelLimit": 480,
            **({} if at % 2 == 0 else {"labels": False}),
        },
    }
    target = {
        "Mean time per output token": targets.workload.tpot_ms,
        "Mean time to first token": targets.workload.ttft_ms,
    }.get(title)
    reach = max(reach, target or 0.0)
    x: Spec = {
        "field": "value",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [0, reach * 1.03], "nice": False},
        "axis": {"values": ticks(reach), "labelOverlap": False},
    }
    used = [kind for kind in _KINDS if any(row["kind"] == kind for row in rows)]
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": {"band": 0.7}},
            "encoding": {
                "x": x,
                "y": y,
                "tooltip": pointed_at(("name", "plan", ""), ("label", unit, ""), ("range", "90 % range", "")),
                "color": {
                    "field": "kind",
                    "type": "nominal",
                    "legend": {"title": "weights and cache", "values": used, **LEGEND} if at == 0 else None,
                    "scale": {"domain": list(_KINDS), "range": list(_KINDS.values())},
                },
            },
        },
        *error_bars("value", "x", along=y),
        {
            "mark": {"type": "text", "align": "right", "baseline": "middle"},
            "encoding": {"y": y, "x": {"value": _WIDTH + 52}, "text": {"field": "label"}},
        },
    ]
    if target is not None:
        layers.append(
            {
                "data": data([{"value": target}]),
                "mark": {"type": "rule", "strokeDash": [5, 4], "color": MISSED, "strokeWidth": 1.4},
                "encoding": {"x": {"field": "value", "type": "quantitative"}},
            }
        )
    note = f"{unit}; red: target {target:g}" if target is not None else unit
    return {
        "title": heading(title, [note]),
        "width": _WIDTH,
        "height": {"step": ROW},
        "data": data(values),
        "layer": layers,
    }


def _value(row: Mapping[str, Any], interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {
        "name": row["name"],
        "kind": row["kind"],
        "value": interval.value,
        "value_low": interval.low,
        "value_high": interval.high,
        "label": _short(interval.value),
        "range": f"{_short(interval.low)} – {_short(interval.high)}",
    }


def _rows(candidate: Candidate) -> Iterator[dict[str, Any]]:
    """The rows of the table, each named by what tells it from the others."""
    for kind, found, meets in shown_plans(candidate):
        layout = found.estimate.summary
        name = f"{cards_words(candidate)}: {plan_words(found)}, {layout}, {found.requests:,} at once"
        yield {"name": plain(name + ("" if meets else ", misses"), 90), "kind": kind, "estimate": found.estimate}


def ticks(reach: float) -> list[float]:
    """At most five round figures from 0 to ``reach``, one step apart."""
    if reach <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(reach / _MOST_TICKS))
    step = next(one * power for one in (1, 2, 2.5, 5, 10) if one * power * (_MOST_TICKS + 1) > reach)
    return [round(at * step, 12) for at in range(math.floor(reach / step + 1e-9) + 1)]


def _short(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
