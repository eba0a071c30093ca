"""Plans ranked under a trace, on the screen."""

from __future__ import annotations

from trilemma.quantities import counted, show_count, show_usd
from trilemma.report.tables import render_table
from trilemma.report.wrapping import wrapped
from trilemma.simulation.serving.compared import PlanRanking, ReplayedPlan
from trilemma.simulation.serving.outcome import Quantiles

_HEADERS = (
    "#",
    "layout",
    "weights, cache",
    "GPUs",
    "holds",
    "P50 TTFT",
    "P99 TTFT",
    "P99 TPOT",
    "P99 request",
    "$/M tokens",
    "mean TTFT said",
)
_YIELDS = ("mean TTFT said", "P50 TTFT", "P99 request", "holds")


def render_ranking(found: PlanRanking, *, width: int) -> str:
    """The plans with what their users saw, best first."""
    goals = ", ".join(f"P99 {name.upper()} ≤ {value:,.0f} ms" for name, value in found.targets_ms.items())
    head = (
        f"{found.model} on {found.gpu}: {found.traffic}, {counted(found.requests, 'request')} of"
        f" {found.mean_input_tokens:,.0f}/{found.mean_output_tokens:,.0f} tokens in the mean, {found.requests_per_s:.3g} a second"
    )
    parts = ["\n".join(wrapped(head + (f"; {goals}" if goals else ""), width))]
    if not found.plans:
        parts.append("no plan that fits carries this load")
    else:
        rows = [_row(one) for one in found.plans]
        parts.append(render_table(list(_HEADERS), rows, align="rllrlrrrrrr", width=width, yields=_YIELDS))
        if not found.plans[0].holds:
            parts.append(
                "NO PLAN HOLDS THE TARGETS at the 99th percentile, or answers every request; these come nearest"
            )
        if found.plans[0].command:
            parts.append("\n".join(wrapped(f"#1: {found.plans[0].command}", width, subsequent_indent="    ")))
    legal = f"{show_count(found.legal)} legal of {show_count(found.searched)} plans, filtered by the mean load in closed form"
    parts.append("\n".join([legal, *(f"left out: {why}" for why in found.left_out)]))
    return "\n\n".join(parts)


def _row(one: ReplayedPlan) -> list[str]:
    metrics = one.metrics
    cost = "" if one.cost is None else f"${show_usd(one.cost.usd_per_million_tokens)}"
    return [
        str(one.rank), one.layout, f"{one.precision}, {one.kv_format}", show_count(one.gpus), "yes" if one.holds else "no",
        _time(metrics.ttft_ms, "p50"), _time(metrics.ttft_ms, "p99"), _time(metrics.tpot_ms, "p99"),
        _time(metrics.e2e_ms, "p99"), cost, "" if one.expected_ttft_ms is None else _shown(one.expected_ttft_ms),
    ]  # fmt: skip


def _time(figures: Quantiles | None, name: str) -> str:
    return "" if figures is None else _shown(float(getattr(figures, name)))


def _shown(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:,.2f} s" if milliseconds >= 1e4 else f"{milliseconds:,.1f} ms"
