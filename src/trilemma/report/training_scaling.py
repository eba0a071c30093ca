"""How a training job scales, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trilemma.quantities import show_count
from trilemma.report.tables import render_table

if TYPE_CHECKING:
    from trilemma.search.training_scaling import ScalingPoint

_HEADERS = ("GPUs", "plan", "step s", "tok/s", "efficiency", "comm", "GB/s to hide", "days", "$", "goodput")


def render_scaling(points: Sequence[ScalingPoint], *, width: int) -> str:
    """A row for each number of GPUs, days and dollars where the length of the run is stated."""
    rows = [
        [
            show_count(one.gpus),
            one.plan,
            f"{one.step_s:,.2f}",
            show_count(one.tokens_per_s),
            f"{one.efficiency:.0%}",
            f"{one.comm_fraction:.0%}",
            f"{one.network_bytes_per_s / 1e9:,.1f}",
            *_run(one),
        ]
        for one in points
    ]
    table = render_table(_HEADERS, rows, align="rlrrrrrrrr", width=width, yields=("plan", "GB/s to hide", "comm"))
    return f"more or fewer GPUs, one global batch\n{table}"


def _run(one: ScalingPoint) -> list[str]:
    run = one.run
    if not run:
        return ["–"] * 3
    usd = f"{run['usd']['value']:,.0f}" if "usd" in run else "–"
    return [f"{run['days']['value']:,.1f}", usd, f"{run['goodput']:.1%}"]
