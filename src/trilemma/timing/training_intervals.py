"""How far a predicted training step may be off: factors that bound 90 % of measured steps, by class."""

from __future__ import annotations

import math

from trilemma.hardware.accelerator import Accelerator
from trilemma.timing.clocks import untold_half
from trilemma.timing.slow_wires import slow_wire
from trilemma.timing.training_coefficients import document, host_update
from trilemma.timing.training_collectives import Fabric
from trilemma.timing.training_frameworks import FrameworkTiming
from trilemma.timing.training_step import StepTime

_KINDS = ("dense", "mixture")
#: Classes, and what each says of the runs behind a figure.
_RUNS = {
    "measured": "many runs of this trainer and some on this card",
    "sparse": "few runs of this trainer and some on this card",
    "unmeasured": "runs of other trainers or on other cards",
}
#: A framework told by fewer runs (by weight) than this is in a class of its own: its offsets rest on little.
SPARSE = 20.0


def with_host(step: StepTime, low: float, high: float) -> tuple[float, float]:
    """Factors ``low`` and ``high`` (numbers) of a whole step with what is known of the host's part of it: a wide range of
    machines (data/coefficients/host_memory.toml)."""
    share = float(step.lines["host_optimizer"] / step.step_s)
    row = host_update()
    return (
        low * (1 - share) + share * row["share"] / row["high"],
        high * (1 - share) + share * row["share"] / row["low"],
    )


def with_slow_wire(step: StepTime, fabric: Fabric, low: float, high: float) -> tuple[float, float]:
    """Factors ``low`` and ``high`` (numbers) of a whole step with what is known of a network slower than those of measured runs
    (data/coefficients/training_step.toml)."""
    if not fabric.usual_far_bytes_per_s:
        return low, high
    share = float(step.communication_fraction)
    row = slow_wire()
    return (
        low * (1 - share + share * row["share"] / row["high"]),
        high * (1 - share + share * row["share"] / row["low"]),
    )


def with_cap(clock: float, low: float, high: float) -> tuple[float, float]:
    """Factors ``low`` and ``high`` (numbers) of a whole step with what is known of a card that a cap holds at ``clock``: no
    training under a cap was fitted, so the law of clocks is off as on chips that were not measured (clocks.toml)."""
    if clock >= 1:
        return low, high
    off = math.exp(untold_half())
    return low / off, high * off


def step_spread(framework: FrameworkTiming, accelerator: Accelerator, *, mixture: bool) -> tuple[float, float]:
    """(low, high) factors by which measured steps differ from predicted ones in nine of ten runs.

    Classes: dense or mixture, each where many runs of the framework and some of the card with such models were fitted (residuals
    of runs held out), where few of the framework were, and where framework or card was not (whole frameworks held out). The rows
    behind them stand in the data file.

    Two numbers. Source: residuals of the measured training runs (docs/accuracy.md).
    """
    row = document()["spread"][f"{_KINDS[mixture]}_{_told_by(framework, accelerator, mixture=mixture)}"]
    return float(row["step"][0]), float(row["step"][1])


def step_ranges_in_words(framework: FrameworkTiming, accelerator: Accelerator, *, mixture: bool) -> str:
    """Of what runs the bounds of `step_spread` are."""
    return (
        f"{_RUNS[_told_by(framework, accelerator, mixture=mixture)]} with {'mixtures' if mixture else 'dense models'}"
    )


def _told_by(framework: FrameworkTiming, accelerator: Accelerator, *, mixture: bool) -> str:
    kind = _KINDS[mixture]
    runs = document()["runs"].get(f"{framework.name}.{kind}", 0.0)
    if not runs or not document()["cards"].get(f"{accelerator.id}.{kind}"):
        return "unmeasured"
    return "measured" if runs >= SPARSE else "sparse"
