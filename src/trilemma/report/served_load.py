"""What a server did under load, for people and as ``trilemma/load@1``."""

from __future__ import annotations

from typing import Any

from trilemma.columns import document_of
from trilemma.measuring.energy.window import EnergyWindow
from trilemma.measuring.serving.outcome import LoadFigure, ServedLoad
from trilemma.quantities import arrivals, counted
from trilemma.report.tables import render_table

#: Outputs shorter than this share of what was asked for are told: latencies are those of such answers.
_SHORT = 0.95


def load_document(found: ServedLoad) -> dict[str, Any]:
    return document_of(found)


def render_load(found: ServedLoad, *, width: int | None = None) -> str:
    how = arrivals(found.rate) if found.rate is not None else (
        f"{found.concurrency} at once" if found.concurrency is not None else "as the trace says"
    )  # fmt: skip
    lines = [f"{found.model}: {counted(found.requests, 'request')}, {how}, {found.seconds:.1f} s"]
    told = "".join(f"; {one.requests} {one.why}" for one in found.failures)
    lines.append(f"{found.completed} answered, {found.failed} failed{told}")
    if found.ended_early:
        lines.append(f"ENDED EARLY: {found.ended_early}")
    if found.completed:
        short = found.osl_asked is not None and found.osl is not None and found.osl < _SHORT * found.osl_asked
        asked = f" where {found.osl_asked:.0f} were asked for" if short else ""
        lines.append(
            f"prompts of {found.isl:.0f} tokens, outputs of {found.osl:.0f}{asked}; {found.requests_per_s:.3g} requests and"
            f" {found.output_tokens_per_s:,.1f} output tokens a second; {found.in_flight:.1f} in flight"
        )
    if found.energy is not None:
        lines.append(_energy_words(found.energy, found.j_per_output_token))
    if found.goodput_per_s is not None:
        lines.append(f"goodput {found.goodput_per_s:.3g} requests a second within the targets")
    rows = [
        [word, *(f"{getattr(figure, part):,.1f}" for part in ("mean", "p50", "p90", "p95", "p99"))]
        for word, figure in (
            ("time to first token", found.ttft_ms), ("time per output token", found.tpot_ms),
            ("between pieces", found.itl_ms), ("whole request", found.e2e_ms),
        )
        if isinstance(figure, LoadFigure)
    ]  # fmt: skip
    table = render_table(["ms", "mean", "P50", "P90", "P95", "P99"], rows, align="lrrrrr", width=width)
    return "\n".join(lines) + (f"\n\n{table}" if rows else "")


def _energy_words(drawn: EnergyWindow, j_per_token: float | None) -> str:
    cards = counted(drawn.cards, "card")
    if drawn.joules is None:
        return f"no energy is told for {cards}: {drawn.detail}"
    each = "" if j_per_token is None else f", {j_per_token:.3g} J an output token"
    return f"{cards} drew {drawn.mean_w:,.0f} W in the mean, {drawn.joules:,.0f} J{each}"
