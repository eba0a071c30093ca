"""The chart of a training search: from a naive plan to the best, and where its time and memory go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trilemma.estimate.estimate import Estimate
from trilemma.hardware.accelerator import Accelerator
from trilemma.quantities import GIB
from trilemma.report.charts.estimate import panels, subtitle
from trilemma.report.charts.theme import BLUE, LEGEND, ROW, VERMILION, WIDTH, Spec, data, heading, page, plain
from trilemma.report.text import title_of
from trilemma.search.training_questions import WaterfallStep

_FITS = {"fits": BLUE, "does not fit": VERMILION}


def training_chart(estimate: Estimate, accelerator: Accelerator, waterfall: Sequence[WaterfallStep]) -> Spec:
    """``estimate`` is of the best plan (or of the nearest miss), ``waterfall`` the way to it from a naive one."""
    way = [_way(waterfall)] if len(waterfall) > 1 else []
    return page(title_of(estimate), subtitle(estimate), [*way, *panels(estimate, accelerator)])


def _way(steps: Sequence[WaterfallStep]) -> Spec:
    rows = []
    before: float | None = None
    for at, step in enumerate(steps):
        change = "" if before is None else f"{step.step_s / before - 1:+.1%}"
        rows.append(_row(at, step, change))
        before = step.step_s
    y: Spec = {
        "field": "name",
        "type": "nominal",
        "sort": [row["name"] for row in rows],
        "axis": {"title": None, "grid": False, "ticks": False, "domain": False},
    }
    return {
        "title": heading(
            "From a naive plan to this one", ["seconds of a step after each change, and memory of the fullest GPU"]
        ),
        "width": WIDTH,
        "height": {"step": ROW},
        "data": data(rows),
        "layer": [
            {
                "mark": {"type": "bar", "height": {"band": 0.72}},
                "encoding": {
                    "y": y,
                    "x": {"field": "seconds", "type": "quantitative", "title": "seconds", "axis": {"tickCount": 8}},
                    "color": {
                        "field": "kind",
                        "type": "nominal",
                        "legend": {"title": None, **LEGEND},
                        "scale": {"domain": list(_FITS), "range": list(_FITS.values())},
                    },
                },
            },
            *(
                {
                    "mark": {"type": "text", "align": "right", "baseline": "middle"},
                    "encoding": {"y": y, "x": {"value": WIDTH + at}, "text": {"field": field}},
                }
                for field, at in (("label", 60), ("change", 120), ("memory", 205))
            ),
        ],
    }


def _row(at: int, step: WaterfallStep, change: str) -> dict[str, Any]:
    return {
        "name": plain(f"{at + 1}. {step.change}", 44),
        "seconds": step.step_s,
        "kind": "fits" if step.fits else "does not fit",
        "label": f"{step.step_s:,.2f}" if step.step_s < 100 else f"{step.step_s:,.0f}",
        "change": change,
        "memory": f"{step.device_bytes / GIB:,.1f} GiB",
    }
