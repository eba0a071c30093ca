"""GPUs side by side: bars of throughput, latency and price with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trilemma.estimate.estimate import Estimate
from trilemma.intervals import Interval
from trilemma.report.charts.estimate import engine_of
from trilemma.report.charts.theme import BLUE, LEGEND, MISSED, ORANGE, ROW, Spec, data, error_bars, heading, page, plain
from trilemma.report.plans import load_words, weights_words
from trilemma.search.compare import Candidate, Comparison
from trilemma.search.found import Found

_KINDS = {"as published": BLUE, "best precision": ORANGE}
_WIDTH = 230


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
    ("Time per output token", "milliseconds", _tpot),
    ("Time to first token", "milliseconds", _ttft),
)


def comparison_chart(comparison: Comparison, *, model: str) -> Spec:
    """A row for each plan of each GPU, a panel for each figure; what does not fit is named above."""
    rows = [row for candidate in comparison.candidates for row in _rows(candidate)]
    words = [load_words(comparison.workload), *comparison.assumed, "whiskers: 90 % intervals; prices: public range"]
    words += [text for candidate in comparison.candidates for text in _missing(candidate)]
    order = [row["name"] for row in rows]
    panels = [_panel(rows, order, figure, at=at, targets=comparison) for at, figure in enumerate(_FIGURES)]
    pairs: list[Spec] = [{"hconcat": panels[at : at + 2], "spacing": 26} for at in (0, 2)]
    title = f"{model}: the best plan on each GPU"
    if rows:
        title += f" · {engine_of(rows[0]['estimate'])}"
    return page(title, words, pairs if rows else [_nothing()])


def _panel(
    rows: list[dict[str, Any]],
    order: list[str],
    figure: tuple[str, str, Callable[[Estimate], Interval | None]],
    *,
    at: int,
    targets: Comparison,
) -> Spec:
    title, unit, of = figure
    values = []
    for row in rows:
        interval = of(row["estimate"])
        if interval is not None:
            values.append(
                {
                    "name": row["name"],
                    "kind": row["kind"],
                    "value": interval.value,
                    "value_low": interval.low,
                    "value_high": interval.high,
                    "label": _short(interval.value),
                }
            )
    y: Spec = {
        "field": "name",
        "type": "nominal",
        "scale": {"domain": order},
        "axis": {
            "title": None,
            "grid": False,
            "ticks": False,
            "domain": False,
            **({} if at % 2 == 0 else {"labels": False}),
        },
    }
    x: Spec = {
        "field": "value",
        "type": "quantitative",
        "title": None,
        "scale": {"zero": True},
        "axis": {"tickCount": 4},
    }
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": {"band": 0.7}},
            "encoding": {
                "x": x,
                "y": y,
                "color": {
                    "field": "kind",
                    "type": "nominal",
                    "legend": {"title": "weights", **LEGEND} if at == 0 else None,
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
    target = {"Time per output token": targets.workload.tpot_ms, "Time to first token": targets.workload.ttft_ms}.get(
        title
    )
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


def _rows(candidate: Candidate) -> Iterator[dict[str, Any]]:
    shown: set[str] = set()
    for kind, found, meets in (
        ("as published", candidate.published, candidate.published_meets),
        ("best precision", candidate.best, candidate.best_meets),
    ):
        name = "" if found is None else _name(candidate, found, meets)
        if found is not None and name not in shown:
            shown.add(name)
            yield {"name": name, "kind": kind, "estimate": found.estimate}


def _name(candidate: Candidate, found: Found, meets: bool) -> str:
    missed = "" if meets else ", misses"
    cards = f"{candidate.cluster.gpus} x {candidate.cluster.accelerator.name}"
    return plain(f"{cards}: {weights_words(found)}, {found.estimate.inputs['plan']['summary']}{missed}", 52)


def _missing(candidate: Candidate) -> Iterator[str]:
    name = f"{candidate.cluster.gpus} x {candidate.cluster.accelerator.name}"
    more = f", fits from {candidate.least_gpus} GPUs" if candidate.least_gpus else ""
    if candidate.best is None:
        yield f"{name}: {candidate.refused or 'does not fit'}{more}"
    elif candidate.published is None:
        yield f"{name}: does not fit as published{more}"


def _short(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _nothing() -> Spec:
    return {
        "data": data([{"text": "no plan fits any of these GPUs"}]),
        "mark": "text",
        "encoding": {"text": {"field": "text"}},
    }
