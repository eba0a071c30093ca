"""Pictures of an experiment: loss, gradient angle and what the casts flush to zero, a line per recipe."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.precision.lab.experiment import LabResult
from trilemma.precision.lab.recipes import REFERENCE
from trilemma.precision.lab.records import LabRun, Regime
from trilemma.precision.lab.verdict import RegimeVerdict

_SMOOTHING_STEPS = 5


def check_plotting() -> None:
    """Raise `InputError` where no picture can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("pictures need matplotlib; install it with: pip install 'trilemma[lab]'") from None


def draw_curves(result: LabResult, verdict: RegimeVerdict) -> bytes:
    """A PNG of one regime: mean loss over seeds (their range shaded), gradient cosine, share of output gradients flushed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 9), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, width_ratios=(2, 1))
    loss, angle, flushed = (
        figure.add_subplot(grid[:, 0]),
        figure.add_subplot(grid[0, 1]),
        figure.add_subplot(grid[1, 1]),
    )
    names = [one.recipe.name for one in verdict.recipes]
    for at, name in enumerate(names):
        runs = [run for run in result.runs if run.recipe.name == name and run.regime == verdict.regime]
        style = _style(name, at)
        _draw_loss(loss, runs, verdict, style)
        if name != REFERENCE:
            _draw_signal(angle, runs, style, lambda probe: probe.gradient.cosine)
            _draw_signal(flushed, runs, style, _flushed)
    _finish(loss, "training loss (mean of seeds, range shaded; × = NaN)", "loss")
    loss.set_yscale("log")
    loss.yaxis.set_major_formatter("{x:g}")
    loss.yaxis.set_minor_formatter("{x:g}")
    figure.legend(*loss.get_legend_handles_labels(), fontsize=8, ncols=4, loc="outside lower center")
    _finish(angle, "cosine of the gradient to BF16 on the same weights", "cosine")
    _finish(flushed, "underflows% of output gradients, worst layer", "%")
    figure.suptitle(
        f"{result.experiment.name}: {_describe(verdict.regime)}, {len(result.experiment.seeds)} seeds", fontsize=11
    )
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _style(name: str, at: int) -> dict[str, Any]:
    from matplotlib import colormaps

    if name == REFERENCE:
        return {"color": "black", "linewidth": 2.5, "zorder": 5}
    dashes = ("-", "--", ":")[at // 10 % 3]
    return {"color": colormaps["tab10"](at % 10), "linewidth": 1.4, "linestyle": dashes}


def _draw_loss(axes: Any, runs: list[LabRun], verdict: RegimeVerdict, style: dict[str, Any]) -> None:
    name = runs[0].recipe.name
    one = verdict.of(name)
    if one.stops:
        run = max(runs, key=lambda run: len(run.losses))
        finite = [loss for loss in run.losses if math.isfinite(loss)]
        label = f"{name}: NaN at step {min(one.stops.values())}"
        axes.plot(_smooth(finite), label=label, **style)
        for stopped in runs:
            if stopped.stopped_at is not None:
                before = [loss for loss in stopped.losses if math.isfinite(loss)]
                height = before[-1] if before else stopped.probes[-1].shadow_loss
                axes.plot(stopped.stopped_at, height, "x", color=style["color"], markersize=8, markeredgewidth=2)
        return
    curves = np.array([_smooth(list(run.losses)) for run in runs])
    axes.plot(curves.mean(0), label=f"{name}: {one.final_loss:.2f}", **style)
    axes.fill_between(
        range(curves.shape[1]), curves.min(0), curves.max(0), color=style["color"], alpha=0.12, linewidth=0
    )


def _draw_signal(axes: Any, runs: list[LabRun], style: dict[str, Any], value: Any) -> None:
    steps = sorted({probe.step for run in runs for probe in run.probes})
    points = []
    for step in steps:
        found = [value(probe) for run in runs for probe in run.probes if probe.step == step]
        finite = [one for one in found if math.isfinite(one)]
        points.append(float(np.mean(finite)) if finite else math.nan)
    axes.plot(steps, points, marker=".", **style)


def _flushed(probe: Any) -> float:
    worst = probe.worst("g", "underflows_percent", lowest=False)
    return worst[0] if worst is not None else math.nan


def _finish(axes: Any, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.25)


def _smooth(losses: list[float]) -> Any:
    """Trailing mean, as long as the curve."""
    values = np.asarray(losses, dtype=float)
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - _SMOOTHING_STEPS)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _describe(regime: Regime) -> str:
    parts = [f"learning rate {regime.learning_rate:g}", f"clipped at {regime.clip_norm:g}"]
    if regime.outlier_gain > 1:
        parts.append(f"outliers × {regime.outlier_gain:g}")
    return ", ".join(parts)
