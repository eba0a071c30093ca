"""The ledger's answers for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from trilemma.report.tables import render_table
from trilemma.runs.comparing import Gated, RunDifference
from trilemma.runs.run import LedgerRun, RunEvent
from trilemma.runs.trend import Trend

RUNS_SCHEMA = "trilemma/runs@1"
#: Figures that a list shows first, where runs have them.
_FIRST = (
    "tokens_per_s_per_gpu",
    "tokens_per_s",
    "step_s",
    "step_ms",
    "mfu",
    "tpot_ms",
    "ttft_ms",
    "output_tok_s_total",
    "loss",
)
_SHOWN = 3


def run_document(run: LedgerRun, *, series: Sequence[str] = (), events: Sequence[RunEvent] = ()) -> dict[str, Any]:
    """One run as plain data."""
    document = {name: value for name, value in asdict(run).items() if value not in (None, "", {}, ())}
    if series:
        document["series"] = list(series)
    if events:
        document["events"] = [asdict(one) for one in events]
    return document


def runs_document(runs: Sequence[LedgerRun]) -> dict[str, Any]:
    return {"schema": RUNS_SCHEMA, "runs": [run_document(run) for run in runs]}


def render_runs(runs: Sequence[LedgerRun], *, width: int, figure: str | None = None) -> str:
    """Runs in rows with the figures that most have."""
    if not runs:
        return "no run"
    counts: dict[str, int] = {}
    for run in runs:
        for name in run.figures:
            counts[name] = counts.get(name, 0) + 1
    ordered = sorted(counts, key=lambda name: (name != figure, name not in _FIRST, -counts[name]))[:_SHOWN]
    rows = [
        [
            str(run.id), run.name, when(run.started_s), run.status, run.model or "–", _cards(run),
            *("–" if name not in run.figures else number(run.figures[name]) for name in ordered),
        ]
        for run in runs
    ]  # fmt: skip
    headers = ("id", "name", "started (UTC)", "status", "model", "GPUs", *ordered)
    return render_table(headers, rows, align="rlllll" + "r" * len(ordered), width=width)


def render_run(run: LedgerRun, *, series: Sequence[str], events: Sequence[RunEvent]) -> str:
    """One run in full."""
    why = f" ({run.why})" if run.why else ""
    lines = [f"run {run.id} {run.name}: {run.status}{why}", f"started    {when(run.started_s)} UTC"]
    if run.seconds is not None:
        lines.append(f"took       {run.seconds:,.1f} s")
    for label, value in (("model", run.model), ("GPUs", _cards(run)), ("git", run.git), ("tags", ", ".join(run.tags))):
        if value and value != "–":
            lines.append(f"{label:<10} {value}")
    for title, values in (("figures", run.figures), ("configuration", run.config), ("machine", run.machine)):
        lines += _section(title, {key: _setting(value) for key, value in values.items()})
    speed = run.estimate.get("speed")
    told = speed.items() if isinstance(speed, dict) else ()
    lines += _section(
        "expected", {name: _expected(one) for name, one in told if isinstance(one, dict) and "value" in one}
    )
    if series:
        lines += ["", f"series: {', '.join(series)}"]
    return "\n".join([*lines, *_section("events", {when(one.at_s): one.what for one in events})])


def _section(title: str, rows: Mapping[str, str]) -> list[str]:
    return ["", title, *(f"  {key}  {value}" for key, value in rows.items())] if rows else []


def _expected(one: dict[str, Any]) -> str:
    return (
        f"{number(one['value'])} ({number(one['low'])} – {number(one['high'])})"
        if "low" in one
        else number(one["value"])
    )


def difference_document(found: RunDifference) -> dict[str, Any]:
    return {
        "schema": "trilemma/runs-difference@1", "before": found.before.id, "after": found.after.id,
        "config": [asdict(one) for one in found.config], "figures": [asdict(one) for one in found.figures],
    }  # fmt: skip


def render_difference(found: RunDifference, *, width: int) -> str:
    """Settings that differ, then figures side by side."""
    before, after = found.before, found.after
    parts = [f"run {before.id} {before.name} → run {after.id} {after.name}"]
    if found.config:
        rows = [[one.key, _setting(one.before), _setting(one.after)] for one in found.config]
        parts += ["", render_table(("setting", "before", "after"), rows, align="lll", width=width)]
    else:
        parts += ["", "the same configuration and machine"]
    figures = [
        [
            one.figure,
            number(one.before),
            number(one.after),
            f"{one.change:+.1%}".replace("%", " %"),
            _chance(one.chance),
        ]
        for one in found.figures
    ]
    if figures:
        parts += [
            "",
            render_table(("figure", "before", "after", "change", "by chance"), figures, align="lrrrr", width=width),
        ]
    return "\n".join(parts)


def _setting(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    return "–" if value is None else str(value)


def _chance(chance: float | None) -> str:
    if chance is None:
        return "too few points"
    return "< 0.1 %" if chance < 1e-3 else f"{100 * chance:.1f} %"


def gate_document(found: Gated) -> dict[str, Any]:
    return {
        "schema": "trilemma/runs-gate@1", "passed": found.passed, "run": found.run.id, "baseline": found.baseline.id,
        "figure": found.figure, "before": found.before, "after": found.after, "gain": found.gain, "tolerance": found.tolerance,
    }  # fmt: skip


def render_gate(found: Gated) -> str:
    verdict = "passes" if found.passed else "FAILS"
    way = "better" if found.gain >= 0 else "worse"
    return (
        f"{verdict}: {found.figure} of run {found.run.id} is {number(found.after)}, {abs(found.gain):.1%} {way} than the"
        f" {number(found.before)} of run {found.baseline.id} (up to {found.tolerance:.1%} worse is let pass)"
    ).replace("%", " %")


def trends_document(trends: Sequence[Trend]) -> dict[str, Any]:
    return {"schema": "trilemma/trends@1", "trends": [asdict(one) for one in trends]}


def render_trends(trends: Sequence[Trend]) -> str:
    """Each figure's level and noise, and each change with what happened then."""
    lines = []
    for one in trends:
        lines.append(
            f"{one.figure}: {number(one.level)} now, {one.hours:,} hours from {when(one.first_s)}, an hour varies by"
            f" {one.noise:.1%}".replace("%", " %")
        )
        lines += [
            f"  {when(change.at_s)}  {number(change.before)} → {number(change.after)}  {change.change:+.1%}".replace(
                "%", " %"
            )
            + (f"  with: {'; '.join(change.events)}" if change.events else "")
            for change in one.changes
        ]
        if not one.changes:
            lines.append("  no change")
    return "\n".join(lines)


def _cards(run: LedgerRun) -> str:
    if not run.gpu:
        return "–"
    return run.gpu if run.gpus is None else f"{run.gpus} x {run.gpu}"


def when(seconds: float) -> str:
    """Seconds since 1970 as a date and time of UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return f"{seconds:g} s"


def number(value: float) -> str:
    """Four significant digits, thousands apart."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
