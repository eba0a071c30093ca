"""Sensitivities, activation statistics and settled allocations, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trilemma.data.digest import made_by
from trilemma.precision.activation_statistics import ActivationStatistics
from trilemma.precision.allocate import Frontier, Problem
from trilemma.precision.measured_plan import BudgetChoice, Uniform
from trilemma.precision.sensitivity import Sensitivities
from trilemma.quantities import show_count
from trilemma.report.tables import render_table

MEASUREMENT_SCHEMA = "trilemma/precision-measurement@1"
ALLOCATION_SCHEMA = "trilemma/precision-allocation@1"
#: Columns of the allocations that give way where the window is narrow, the first first.
_YIELDS = ("greedy/exact", "perplexity", "its KL", "found by", "best uniform", "ratio")
_BLOCKS = " ▁▂▃▄▅▆▇█"


def render_sensitivities(found: Sensitivities, *, most: int = 40, width: int | None = None) -> str:
    """Groups × formats: KL in thousandths of a nat, most sensitive first; SQNR where only proxies were measured."""
    formats = list(dict.fromkeys(row.format for row in found.rows))
    proxies = all(row.kl is None for row in found.rows)
    cells = {(row.group, row.format): row for row in found.rows}

    def figure(group: str, fmt: str) -> str:
        row = cells.get((group, fmt))
        if row is None:
            return "–"
        return f"{row.sqnr_db:.1f}" if row.kl is None else f"{1e3 * row.kl:.3g}"

    def worst(group: str) -> float:
        return -max(
            (row.kl or 0.0) if row.kl is not None else row.weighted_error for row in found.rows if row.group == group
        )

    order = sorted(found.elements, key=worst)
    rows = [
        [group, show_count(found.elements[group]), *(figure(group, fmt) for fmt in formats)] for group in order[:most]
    ]
    unit = "SQNR in dB" if proxies else "KL from full precision in 1/1000 nat per token"
    title = f"{found.model}: perplexity {found.perplexity:.4f} on {found.tokens:,} tokens; one group at a time, {unit}"
    table = render_table(["group", "parameters", *formats], rows, align="l" + "r" * (1 + len(formats)), width=width)
    rest = f"\n{len(order) - most} less sensitive groups are in --json" if len(order) > most else ""
    return f"{title}\n\n{table}{rest}"


def render_activations(found: Sequence[ActivationStatistics], *, most: int = 24, width: int | None = None) -> str:
    """The inputs and cache halves with the widest spread of channels first."""
    ordered = sorted(found, key=lambda one: -one.amax / max(one.median_channel_amax, 1e-30))
    rows = []
    for one in ordered[:most]:
        fp8 = one.kept.get("fp8_tensor") or one.kept["fp8_e4m3"]
        per_token = one.kept["int8_channel"]
        rows.append(
            [
                one.name, f"{one.amax:.3g}", f"{one.amax / max(one.median_channel_amax, 1e-30):.1f}",
                f"{one.outlier_channels}", f"{fp8.underflows_percent:.2f}", f"{fp8.overflows_percent:.2f}",
                f"{fp8.sqnr_db:.1f}", f"{per_token.sqnr_db:.1f}",
            ]
        )  # fmt: skip
    headers = [
        "input or cache", "amax", "over median channel", "outlier channels", "FP8 underflows%", "FP8 overflows%",
        "FP8 SQNR dB", "INT8 per token",
    ]  # fmt: skip
    note = "FP8: one current scale per tensor for inputs, no scale for the cache (k, v), as engines keep it without calibration"
    table = render_table(headers, rows, align="lrrrrrrr", width=width, whole=headers[:1])
    return f"activations and cache, widest channels first\n\n{table}\n{note}"


def measurement_document(found: Sensitivities, activations: Sequence[ActivationStatistics]) -> dict[str, Any]:
    """``trilemma/precision-measurement@1``: ``sensitivity`` can be given to ``allocate`` and ``plan``."""
    return {
        "schema": MEASUREMENT_SCHEMA,
        "made_by": made_by(),
        "model": found.model,
        "sensitivity": found.to_json(),
        "activations": [one.to_json() for one in activations],
    }


def render_allocations(
    settled: Sequence[BudgetChoice],
    uniforms: Sequence[Uniform],
    problem: Problem,
    frontier: Frontier,
    *,
    model: str,
    width: int | None = None,
) -> str:
    """Uniform formats, the frontier, and one row per budget: predicted and measured KL side by side."""
    total = sum(problem.elements)
    parts = [
        f"{model}: {len(problem.groups)} groups, {total:,} parameters; bits count scales; KL in nats per token",
        "",
    ]
    rows = [
        [one.format, f"{8 * one.bytes / total:.3f}", f"{one.calibration.kl:.5f}", f"{one.held_out.kl:.5f}",
         f"{one.held_out.perplexity:.4f}"]
        for one in uniforms
    ]  # fmt: skip
    parts += [
        render_table(
            ["uniform format", "bits", "KL calibration", "KL held out", "perplexity"], rows, align="lrrrr", width=width
        ),
        "",
    ]
    rows = []
    for one in settled:
        rival = one.best_uniform
        rows.append(
            [
                f"{8 * one.budget_bytes / total:.3f}", f"{one.chosen.bits(problem):.3f}", one.chosen.how,
                f"{one.chosen.loss:.5f}", f"{one.calibration.kl:.5f}", f"{one.held_out.kl:.5f}", f"{one.held_out.perplexity:.4f}",
                rival.format if rival else "none fits", f"{rival.held_out.kl:.5f}" if rival else "–",
                f"{one.against_uniform:.3f}" if one.against_uniform is not None else "–",
                f"{one.greedy.loss / one.exact.loss:.4f}" if one.exact.loss > 0 else "1.0000",
            ]
        )  # fmt: skip
    headers = [
        "budget bits", "used", "found by", "KL predicted", "KL measured", "KL held out", "perplexity", "best uniform",
        "its KL", "ratio", "greedy/exact",
    ]  # fmt: skip
    parts += [
        render_table(headers, rows, align="rrlrrrrlrrr", width=width, yields=_YIELDS),
        "",
        render_frontier(problem, frontier),
    ]
    if settled:
        parts += ["", _formats_table(settled[0], problem, width)]
    return "\n".join(parts)


def render_frontier(problem: Problem, frontier: Frontier, *, columns: int = 60) -> str:
    """Predicted loss over bits as a line of blocks, on a logarithmic scale of losses."""
    import math

    total = sum(problem.elements)
    points = [(8 * size / total, loss) for size, loss in frontier.points()]
    low, high = points[0][0], points[-1][0]
    positive = [loss for _, loss in points if loss > 0]
    if len(points) < 2 or not positive:
        return f"frontier: one point at {low:.3f} bits"
    floor, top = math.log(min(positive)), math.log(max(positive))
    bar = []
    for column in range(columns):
        bits = low + (high - low) * column / (columns - 1)
        loss = min(value for at, value in points if at <= bits + 1e-12)
        share = 0.0 if loss <= 0 else (math.log(loss) - floor) / max(top - floor, 1e-12)
        bar.append(_BLOCKS[round(share * 8)])
    ends = f"{low:.2f} bits, {points[0][1]:.3g} nats"
    last = f"{high:.2f} bits, {points[-1][1]:.2g} nats"
    return f"frontier, predicted KL (log) over bits: {len(points):,} undominated plans\n{''.join(bar)}\n{ends} … {last}"


def _formats_table(one: BudgetChoice, problem: Problem, width: int | None) -> str:
    roles: dict[str, list[str]] = {}
    for group, fmt in one.chosen.formats.items():
        layer, _, role = group.partition(".")
        roles.setdefault(role if layer.isdecimal() else group, []).append(fmt)
    rows = []
    for role, formats in roles.items():
        counted = {name: formats.count(name) for name in dict.fromkeys(formats)}
        rows.append([role, ", ".join(f"{times} x {name}" if times > 1 else name for name, times in counted.items())])
    bits = 8 * one.budget_bytes / sum(problem.elements)
    return f"formats at the budget of {bits:.3f} bits\n" + render_table(
        ["groups", "formats"], rows, align="ll", width=width
    )


def allocation_document(
    settled: Sequence[BudgetChoice], uniforms: Sequence[Uniform], problem: Problem, frontier: Frontier, *, model: str
) -> dict[str, Any]:
    """``trilemma/precision-allocation@1``: uniform formats, budgets with predicted and measured KL, the frontier."""
    total = sum(problem.elements)
    return {
        "schema": ALLOCATION_SCHEMA,
        "made_by": made_by(),
        "model": model,
        "parameters": total,
        "uniform": [
            {"format": one.format, "bytes": one.bytes, "bits": 8 * one.bytes / total, "kl_calibration": one.calibration.kl,
             "kl_held_out": one.held_out.kl, "perplexity": one.held_out.perplexity}
            for one in uniforms
        ],
        "budgets": [_settled(one, problem) for one in settled],
        "frontier": [{"bytes": size, "bits": 8 * size / total, "kl": loss} for size, loss in _thinned(frontier)],
    }  # fmt: skip


def _settled(one: BudgetChoice, problem: Problem) -> dict[str, Any]:
    rival = one.best_uniform
    return {
        "budget_bytes": one.budget_bytes,
        "bytes": one.chosen.bytes,
        "bits": one.chosen.bits(problem),
        "how": one.chosen.how,
        "formats": dict(one.chosen.formats),
        "kl_predicted": one.chosen.loss,
        "kl_measured": one.calibration.kl,
        "kl_held_out": one.held_out.kl,
        "perplexity": one.held_out.perplexity,
        "perplexity_full_precision": one.held_out.reference_perplexity,
        "kl_exact": one.exact.loss,
        "kl_greedy": one.greedy.loss,
        **({"best_uniform": rival.format, "kl_best_uniform": rival.held_out.kl} if rival else {}),
    }


def _thinned(frontier: Frontier, most: int = 400) -> list[tuple[int, float]]:
    points = frontier.points()
    step = max(1, -(-len(points) // most))
    return [*points[:-1:step], points[-1]]
