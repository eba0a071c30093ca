"""A simulation of serving on the screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trilemma.errors import shorten
from trilemma.quantities import counted, show_count, show_usd
from trilemma.report.tables import render_table
from trilemma.report.wrapping import within, wrapped
from trilemma.simulation.serving.outcome import (
    EnergyOfRun,
    LoadCurve,
    LoadPoint,
    OtherRun,
    Quantiles,
    ServingSimulation,
    UserMetrics,
)

_ROWS = (
    ("first token", "ttft_ms"),
    ("  of it queued", "queue_ms"),
    ("time per token", "tpot_ms"),
    ("between tokens", "itl_ms"),
    ("whole request", "e2e_ms"),
)
_COLUMNS = ("mean", "p50", "p90", "p95", "p99")


def render_simulation(found: ServingSimulation, *, explain: bool, width: int) -> str:
    """What users saw, what the engines did, what was assumed."""
    parts = [
        within(_head(found), width), *([_table(found, width)] if found.completed else []), within(_machine(found), width)
    ]  # fmt: skip
    if found.compared is not None:
        parts.append(within(_beside(found, found.compared), width))
    if found.load_curve is not None:
        parts.append(within(_curve(found.load_curve, width), width))
    if found.tenants:
        parts.append(_tenants(found))
    if explain and found.allocation:
        parts.append(_allocation(found))
    notes = [f"note: {one.message}" for one in found.warnings] if explain else []
    return "\n\n".join([*parts, *("\n".join(wrapped(note, width)) for note in notes)])


def _head(found: ServingSimulation) -> str:
    longest = f"refused (longer than the context of {show_count(found.inputs['context'])} tokens, or than the cache)"
    lost = "".join(
        f", {show_count(number)} {what}"
        for number, what in ((found.rejected, longest), (found.abandoned, "given up"))
        if number
    )
    return (
        f"{_where(found.inputs)}\n{found.inputs['traffic']}\n{show_count(found.completed)} of"
        f" {counted(found.requests, 'request')} answered in {found.seconds_simulated:,.1f} s{lost}"
    )


def _where(inputs: Mapping[str, Any]) -> str:
    """The model, its cards, its engine and how it lies on them."""
    pools = inputs.get("pools", {"": inputs["layout"]})
    laid_out = " + ".join(_pool(name, layout) for name, layout in pools.items())
    where = f"{inputs['model']} on {inputs['gpus']} x {inputs['gpu']}"
    return " · ".join(part for part in (where, f"{inputs['engine']} {inputs['version']}", laid_out) if part)


def _pool(name: str, layout: Mapping[str, int]) -> str:
    degrees = " ".join(f"{what.upper()}{size}" for what, size in layout.items() if size > 1 and what != "replicas")
    engines = layout["replicas"]
    many = (
        f"{counted(engines, 'engine')} of "
        if engines > 1 and degrees
        else f"{counted(engines, 'engine')} "
        if engines > 1
        else ""
    )
    return " ".join(f"{many}{degrees} {name}".split())


def _table(found: ServingSimulation, width: int) -> str:
    rows = []
    for label, name in _ROWS:
        figures: Quantiles | None = getattr(found.metrics, name)
        if figures is not None:
            cells = [_time(getattr(figures, one)) for one in _COLUMNS]
            rows.append([label, *cells, _range(found.bounds, name)])
    headers = ["", *(one if one == "mean" else one.upper() for one in _COLUMNS), "P99, ends of the error bars"]
    keep = len(headers) if found.bounds else len(headers) - 1
    return render_table(
        headers[:keep], [row[:keep] for row in rows], align="lrrrrrr", width=width, yields=("P95", "P90")
    )


def _range(bounds: Mapping[str, Any], name: str) -> str:
    ends = [bounds[end].get(name) for end in ("low", "high")] if bounds else []
    return f"{_time(ends[0]['p99'])} – {_time(ends[1]['p99'])}" if ends and all(ends) else ""


def _machine(found: ServingSimulation) -> str:
    cache = found.cache
    lines = [
        f"throughput {found.output_tokens_per_s:,.0f} output tokens/s, {found.requests_per_s:.3g} requests/s,"
        f" {found.tokens_per_s_per_gpu:,.0f} tokens/s per GPU",
        f"running    {found.mean_running:.1f} requests in the mean, {counted(found.preemptions, 'preemption')}",
        f"cache      {show_count(cache.blocks)} blocks of {counted(cache.block_size, 'token')}, at most"
        f" {cache.peak_share:.0%} held; {cache.token_hit_rate:.1%} of prompt tokens found;"
        f" {cache.unfilled_share:.1%} of what was held unfilled",
    ]
    if found.host_cache is not None:
        host = found.host_cache
        waits = "" if host.wait_ms is None else f", {_time(host.wait_ms)} until it is back"
        lines.append(
            f"host cache {show_count(host.blocks)} blocks; {host.token_hit_rate:.1%} of prompt tokens came back from there;"
            f" {host.written_gb:,.1f} GB written, {host.read_gb:,.1f} GB read{waits}"
        )
    if found.adapters is not None:
        held = found.adapters
        lines.append(
            f"adapters   {counted(held.slots, 'slot')} of rank {held.rank}; {held.slot_hit_rate:.1%} of requests found theirs in"
            f" one; {counted(held.loads, 'load')} ({show_count(held.reads)} read first), {held.load_s:,.2f} s waited for them;"
            f" passed over {show_count(held.passed_over)} times"
        )
    lines += [
        f"{one.pool:<10} {one.mean_running:.1f} requests in the mean, cache at most {one.peak_share:.0%} held"
        for one in found.pools
    ]
    if found.goodput is not None:
        lines.append(
            f"goodput    {found.goodput.share:.1%} of requests within the targets, {found.goodput.requests_per_s:.3g} a second"
        )
    if found.scaling is not None:
        scaled = found.scaling
        lines.append(
            f"engines    {scaled.mean:.1f} of {found.engines} in the mean, at most {scaled.most};"
            f" {counted(len(scaled.changes), 'change')}"
        )
    if found.cost is not None:
        request = found.cost
        lines.append(
            f"cost       ${show_usd(request.usd_per_million_tokens)} per million output tokens; a request"
            f" ${show_usd(request.usd_per_request)}"
        )
    if found.energy is not None:
        lines.append(f"energy     {_energy(found.energy)}")
    lines.append(f"simulated  {show_count(found.events)} events in {found.wall_s:.2f} s")
    return "\n".join(lines)


def _energy(drawn: EnergyOfRun) -> str:
    watts, kwh, token = drawn.watts, drawn.kwh, drawn.joules_per_token
    each = "" if token is None else f"; {token.value:.3g} J per output token ({token.low:.3g} – {token.high:.3g})"
    return f"{watts.value:,.0f} W in the mean ({watts.low:,.0f} – {watts.high:,.0f}), {kwh.value:.3g} kWh in all{each}"


def _beside(found: ServingSimulation, other: OtherRun) -> str:
    """Both runs figure by figure, and what the other makes of the first."""
    rows = [
        [f"{label}, {one.upper()}", _time(first), _time(second), f"{second / first - 1:+.0%}" if first else ""]
        for label, name in _ROWS
        for one in ("p50", "p99")
        if (first := _of(found.metrics, name, one)) is not None
        and (second := _of(other.metrics, name, one)) is not None
    ]
    rates = [("output tokens/s", found.output_tokens_per_s, other.output_tokens_per_s)]
    if found.goodput is not None and other.goodput is not None:
        rates.append(("within the targets, %", 100 * found.goodput.share, 100 * other.goodput.share))
    if found.cost is not None and other.cost is not None:
        rates.append(("$ per million tokens", found.cost.usd_per_million_tokens, other.cost.usd_per_million_tokens))
        rates.append(("$ per 1,000 requests", 1e3 * found.cost.usd_per_request, 1e3 * other.cost.usd_per_request))
    tokens = [one.energy.joules_per_token if one.energy is not None else None for one in (found, other)]
    if tokens[0] is not None and tokens[1] is not None:
        rates.append(("J per output token", tokens[0].value, tokens[1].value))
    rows += [[label, f"{a:,.4g}", f"{b:,.4g}", f"{b / a - 1:+.0%}" if a else ""] for label, a, b in rates]
    table = render_table(["the same requests", "first", "other", "change"], rows, align="lrrr")
    paired = (
        ""
        if other.quicker_share is None
        else f"\nof the requests answered in both, {other.quicker_share:.1%} took less time in the other run"
    )
    lost = f"\n{other.completed:,} of {other.requests:,} answered there" if other.completed < other.requests else ""
    changed = ", ".join(f"{name} {shorten(value)}" for name, value in other.inputs.get("changed", {}).items())
    return f"other: {_where(other.inputs)}{f', with {changed}' if changed else ''}\n\n{table}{paired}{lost}"


def _of(metrics: UserMetrics, name: str, statistic: str) -> float | None:
    figures: Quantiles | None = getattr(metrics, name)
    return None if figures is None else float(getattr(figures, statistic))


def _curve(curve: LoadCurve, width: int) -> str:
    rows = [[f"{one.requests_per_s:.3g}", f"{one.share_of_saturation:.0%}", *_tails(one)] for one in curve.points]
    head = ["requests/s", "of saturation", "P50 first token", "P99 first token", "P50 per token", "P99 per token"]
    return (
        f"saturated at {curve.saturation_requests_per_s:.3g} requests/s; the tail of the first token has doubled beyond"
        f" {curve.knee_requests_per_s:.3g}\n\n" + render_table(head, rows, align="rrrrrr", width=width)
    )


def _tails(one: LoadPoint) -> list[str]:
    figures = (one.metrics.ttft_ms, one.metrics.tpot_ms)
    return [_time(getattr(of, name)) if of is not None else "" for of in figures for name in ("p50", "p99")]


def _allocation(found: ServingSimulation) -> str:
    rows = [
        [one.way.replace("_", " "), "" if one.block_size is None else str(one.block_size), f"{one.unfilled_share:.1%}"]
        for one in found.allocation
    ]
    return render_table(["cache given out", "block", "unfilled"], rows, align="lrr")


def _tenants(found: ServingSimulation) -> str:
    total = max(sum(one.output_tokens for one in found.tenants), 1)
    rows = [
        [
            one.tenant,
            show_count(one.requests),
            f"{one.output_tokens / total:.1%}",
            _time(one.ttft_ms.p99) if one.ttft_ms else "",
        ]
        for one in found.tenants
    ]
    return render_table(["tenant", "requests", "share of tokens", "P99 first token"], rows, align="lrrr")


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:,.2f} s" if milliseconds >= 1e4 else f"{milliseconds:,.1f} ms"
