"""A training-lab experiment for people: verdicts, mitigations, and one page with the curves."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Sequence
from dataclasses import asdict

from trilemma.precision.lab.alarms import Thresholds
from trilemma.precision.lab.experiment import LabResult
from trilemma.precision.lab.presets import Experiment
from trilemma.precision.lab.recipes import LabRecipe
from trilemma.precision.lab.records import FINAL_STEPS, Regime
from trilemma.precision.lab.verdict import Mitigation, RecipeVerdict, RegimeVerdict
from trilemma.report.tables import render_table

_MOST_MITIGATIONS = 4


def render_lab(result: LabResult, *, width: int = 160) -> str:
    """The whole answer as plain text, without a final newline."""
    parts = [f"{result.experiment.name}: {result.experiment.says}", f"text: {result.text}"]
    for verdict in result.verdicts:
        parts += ["", _regime_line(verdict), "", _table(verdict, width), _LEGEND]
        for name in verdict.mitigations:
            parts += ["", *_mitigation_lines(verdict, name)]
    parts += ["", _warning_line(result)]
    return "\n".join(parts)


def explain_lab(result: LabResult, *, width: int = 160) -> str:
    """What every recipe of the experiment does, how figures are made, and the bounds of the alarms."""
    recipes = {run.recipe.name: run.recipe.says for run in result.runs}
    bounds = [[name.replace("_", " "), f"{value:g}"] for name, value in asdict(Thresholds.shipped()).items()]
    return "\n".join(
        [
            render_table(["recipe", "what it does"], list(recipes.items()), align="ll", width=width),
            "",
            f"final loss: mean of the last {FINAL_STEPS} steps; ± 95 %: Student's t with the spread of paired gaps pooled over",
            "recipes that train; warning: 1 - cosine × min(norm ratio, 1 / norm ratio) of the BF16 gradient × share of stored",
            "weights that moved × range left under NaN casts, median of the first 3 steps.",
            "",
            render_table(["alarm", "bound"], bounds, align="lr", width=width),
            "bounds: data/precision/lab_alarms.toml; their limits: docs/low-precision-training.md",
        ]
    )


def render_catalogue(presets: Sequence[Experiment], recipes: Sequence[LabRecipe], *, width: int = 120) -> str:
    """Presets and recipes with one line each."""
    shown = [[one.name, str(len(one.jobs())), one.says] for one in presets]
    listed = [[one.name, one.says] for one in recipes]
    return "\n\n".join(
        [
            render_table(["preset", "runs", "what it tries"], shown, align="lrl", width=width),
            render_table(["recipe", "what it does"], listed, align="ll", width=width),
        ]
    )


def lab_page(result: LabResult, pictures: Sequence[bytes]) -> str:
    """One HTML file that needs nothing else: curves, verdicts, mitigations. ``pictures``: a PNG per regime."""
    parts = [_HEAD, f"<h1>{html.escape(result.experiment.name)}</h1><p>{html.escape(result.experiment.says)}</p>"]
    for verdict, picture in zip(result.verdicts, pictures, strict=True):
        encoded = base64.b64encode(picture).decode("ascii")
        parts.append(f"<h2>{html.escape(_regime_line(verdict))}</h2>")
        parts.append(f'<img alt="loss and gradient curves by recipe" src="data:image/png;base64,{encoded}">')
        cells = "".join(f"<th>{html.escape(one)}</th>" for one in _HEADERS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _row(one)) + "</tr>" for one in verdict.recipes
        )
        parts.append(f"<table><tr>{cells}</tr>{rows}</table>")
        for name in verdict.mitigations:
            head, *lines = _mitigation_lines(verdict, name)
            items = "".join(f"<li>{html.escape(line.strip().partition('. ')[2])}</li>" for line in lines)
            parts.append(f"<h3>{html.escape(head)}</h3><ol>{items}</ol>")
    parts.append(f"<p>{html.escape(_warning_line(result))}</p></body></html>\n")
    return "\n".join(parts)


_HEADERS = ("recipe", "outcome", "final loss", "gap", "± 95 %", "since", "warning", "narrow", "earliest alarm")
_LEGEND = (
    "gap: final loss above BF16 of the same seed, mean over seeds; since: first step from which the gap stays beyond noise;\n"
    "warning: share of the first updates lost, from the first 3 steps; narrow: share of the arithmetic on fewer than 16 bits;\n"
    "tensors: x activation, w weight, g output gradient of a layer."
)

_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Training lab</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
img{width:100%}table{border-collapse:collapse;font-size:13px}td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;
text-align:left}</style></head><body>"""


def _table(verdict: RegimeVerdict, width: int) -> str:
    rows = [_row(one) for one in verdict.recipes]
    return render_table(_HEADERS, rows, align="llrrrrrrl", width=width)


def _row(one: RecipeVerdict) -> list[str]:
    reference = one.outcome == "reference"
    alarm = "" if one.alarm is None else f"step {one.alarm.step}: {one.alarm.says}"
    return [
        one.recipe.name,
        _outcome(one),
        _number(one.final_loss),
        "" if reference else _signed(one.gap),
        "" if one.noise is None or one.outcome in {"reference", "stopped", "blown up"} else f"{one.noise:.2f}",
        "" if one.since_step is None else str(one.since_step),
        "" if reference else f"{one.warning:.2f}",
        f"{one.low_precision_share:.0%}",
        alarm,
    ]


def _outcome(one: RecipeVerdict) -> str:
    if one.stops:
        steps = sorted(one.stops.values())
        span = f"{steps[0]}" if steps[0] == steps[-1] else f"{steps[0]}–{steps[-1]}"
        part = "" if len(steps) == one.seeds else f", {len(steps)} of {one.seeds} seeds"
        return f"NaN at step {span}{part}"
    if one.outcome == "reference":
        return one.outcome
    return f"{one.outcome}, inside seed noise" if one.inside_noise else one.outcome


def _regime_line(verdict: RegimeVerdict) -> str:
    regime: Regime = verdict.regime
    line = f"{regime.steps} steps, learning rate {regime.learning_rate:g}, clipped at {regime.clip_norm:g}"
    if regime.outlier_gain > 1:
        line += f", outliers × {regime.outlier_gain:g}"
    if verdict.seed_noise is None:
        return f"{line}; one seed, so its noise is not known"
    return f"{line}; one gap varies by ± {verdict.seed_noise:.2f} (standard deviation) between seeds"


def _mitigation_lines(verdict: RegimeVerdict, name: str) -> list[str]:
    bad = verdict.of(name)
    better = verdict.mitigations[name]
    if not better:
        return [f"{name} ({bad.outcome}): nothing in this matrix mends it"]
    lines = [f"{name} ({bad.outcome}): what mends it, best first"]
    for rank, one in enumerate(better[:_MOST_MITIGATIONS], 1):
        lines.append(f"  {rank}. {_mitigation(one)}")
    return lines


def _mitigation(one: Mitigation) -> str:
    changes = ", ".join(
        f"{name.replace('_', ' ')} {_word(before)} → {_word(after)}" for name, (before, after) in one.changes.items()
    )
    found = _outcome(one.verdict) if one.verdict.stops else f"{one.verdict.outcome}, gap {_signed(one.verdict.gap)}"
    return f"{one.verdict.recipe.name}: {found}, {one.verdict.low_precision_share:.0%} narrow ({changes})"


def _warning_line(result: LabResult) -> str:
    if not math.isfinite(result.warning.spearman):
        return f"early warning: {result.warning.runs} runs are too few or too alike to rank"
    return (
        f"early warning: what the first 3 steps lost ranks the final gap of the {result.warning.runs} runs that outlived"
        f" them with Spearman {result.warning.spearman:.2f}"
    )


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "NaN"


def _signed(value: float) -> str:
    return f"{value:+.3f}" if math.isfinite(value) else "NaN"


def _word(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
