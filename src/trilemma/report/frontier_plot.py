"""The frontier of allocations drawn: predicted, measured, and uniform formats beside them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from trilemma.errors import InputError, shorten
from trilemma.outside_files import written
from trilemma.precision.allocate import Frontier, Problem
from trilemma.precision.measured_plan import BudgetChoice, Uniform


def plot_frontier(
    path: Path, settled: Sequence[BudgetChoice], uniforms: Sequence[Uniform], problem: Problem, frontier: Frontier
) -> None:
    """Write a PNG or SVG. Raises `InputError` where matplotlib is missing or the file cannot be written."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise InputError("--plot needs matplotlib; pip install 'trilemma[lab]'") from None
    if path.suffix not in (".png", ".svg"):
        raise InputError(f"{shorten(str(path))} is of no kind drawn here; give *.png or *.svg")
    total = sum(problem.elements)
    figure = figures.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    points = [(8 * size / total, loss) for size, loss in frontier.points() if loss > 0]
    axes.plot(*zip(*points, strict=True), linewidth=1, label="predicted (sum of single groups)")
    measured = [(one.chosen.bits(problem), one.held_out.kl) for one in settled]
    axes.plot(*zip(*measured, strict=True), "o", label="chosen, measured on held-out tokens")
    axes.plot(
        [8 * one.bytes / total for one in uniforms], [one.held_out.kl for one in uniforms], "x", label="uniform formats"
    )
    for one in uniforms:
        axes.annotate(one.format, (8 * one.bytes / total, one.held_out.kl), fontsize=7)
    axes.set(
        yscale="log", xlabel="bits per parameter, scales included", ylabel="KL from full precision, nats per token"
    )
    axes.legend()
    with written(path, what="--plot"):
        figure.savefig(path)
