"""What a run leaves behind: settings, loss of every step, signals of the steps that were looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trilemma.columns import column, document_of
from trilemma.errors import InputError
from trilemma.precision.lab.recipes import LabRecipe
from trilemma.precision.signals import GradientSignals, TensorSignals, finite_or_none

#: Steps whose mean is the final loss.
FINAL_STEPS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """What every recipe of a matrix is trained under.

    ``outlier_gain`` above 1 multiplies two channels of every norm and divides the weights that read them, which leaves the
    function as it is and makes activations as uneven as in large models. ``probe_every``: signals are taken in the first
    five steps and every so many steps after.
    """

    steps: int = 120
    learning_rate: float = 2e-3
    learning_rate_warm_up: int = 20
    clip_norm: float = 1.0
    outlier_gain: float = 1.0
    batch: int = 8
    context: int = 64
    width: int = 64
    layers: int = 3
    heads: int = 4
    probe_every: int = 20

    def __post_init__(self) -> None:
        _check("steps", self.steps, 1, 100_000)
        _check("learning rate", self.learning_rate, 1e-9, 10)
        _check("clipping norm", self.clip_norm, 1e-9, 1e9)
        _check("outlier gain", self.outlier_gain, 1, 1e6)
        _check("probing interval", self.probe_every, 1, 100_000)
        _check("batch", self.batch, 1, 1024)
        _check("context", self.context, 8, 1024)
        _check("width", self.width, 32, 2048)
        _check("layers", self.layers, 1, 64)
        _check("heads", self.heads, 1, 64)
        if self.width % 32 or self.width % self.heads or (self.batch * self.context) % 32:
            raise InputError(
                f"width {self.width}, {self.heads} heads and {self.batch} × {self.context} tokens do not fit groups of 32;"
                " use a width that 32 and the heads divide and tokens in multiples of 32"
            )

    def probed(self, step: int) -> bool:
        """Whether signals are taken in ``step`` (from 0)."""
        return step < 5 or step % self.probe_every == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Signals of one step. ``shadow_loss`` and ``gradient``'s reference are those of BF16 on the same weights and batch.

    ``tensors``: (layer, role) → signals, role x (activation), w (weight) or g (gradient of the output). ``applied`` is
    False during the BF16 warm-up of delayed scaling, where the casts are tried but not used. ``fill`` is how much of its
    range the fullest cast tensor takes up (1 = nothing left). Documents give the worst figure of each role; explained ones
    those of every tensor too.
    """

    COLUMNS: ClassVar = {
        "step": {}, "loss": column(finite=True), "shadow_loss": column(finite=True), "gradient": {}, "applied": {},
        "worst_of_roles": column("worst", keep="empty"), "signals": column("tensors", explained=True),
        "frozen_percent": column("frozen_update%"),
    }  # fmt: skip

    step: int
    loss: float
    shadow_loss: float
    gradient: GradientSignals
    tensors: Mapping[tuple[str, str], TensorSignals]
    fill: float = 0.0
    frozen_percent: float | None = None
    applied: bool = True

    def worst(self, role: str, figure: str, *, lowest: bool) -> tuple[float, str] | None:
        """The worst figure among tensors of ``role`` and the layer that has it; None where no tensor was cast."""
        found = [(getattr(signals, figure), layer) for (layer, one), signals in self.tensors.items() if one == role]
        return (min(found) if lowest else max(found)) if found else None

    @property
    def worst_of_roles(self) -> dict[str, Any]:
        """The worst figure of each role and the layer that has it."""
        figures = {
            "sqnr_db": ("sqnr_db", True),
            "underflows_percent": ("underflows%", False),
            "overflows_percent": ("overflows%", False),
        }
        return {
            f"{role}.{name}": {"value": finite_or_none(worst[0]), "layer": worst[1]}
            for role in ("x", "w", "g")
            for figure, (name, lowest) in figures.items()
            if (worst := self.worst(role, figure, lowest=lowest)) is not None
        }

    @property
    def signals(self) -> dict[str, Any]:
        """The figures of every tensor, by "layer.role"."""
        return {f"{layer}.{role}": document_of(one, exact=True) for (layer, role), one in self.tensors.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class LabRun:
    """One training: ``losses`` of every step, ``stopped_at`` the step whose loss or gradient was not finite.

    ``held_out_loss`` is that of the final weights in BF16 on text that was never trained on (NaN where stopped).
    ``low_precision_share``: share of the arithmetic of linear layers on fewer than 16 bits. ``skipped_steps``: those that
    dynamic loss scaling left out.
    """

    COLUMNS: ClassVar = {
        "recipe_name": column("recipe"), "regime": {}, "seed": {}, "final_loss": column(finite=True),
        "held_out_loss": column(finite=True), "stopped_at": column(keep="none"), "skipped_steps": {},
        "low_precision_share": {}, "cpu_rounded_s": column("cpu_s"), "curve": column("losses", keep="empty"),
        "probes": column(keep="empty"),
    }  # fmt: skip

    recipe: LabRecipe
    regime: Regime
    seed: int
    losses: tuple[float, ...]
    probes: tuple[Probe, ...]
    stopped_at: int | None
    held_out_loss: float
    skipped_steps: int = 0
    low_precision_share: float = 0.0
    cpu_s: float = 0.0

    @property
    def final_loss(self) -> float:
        """Mean of the last steps; NaN where the run stopped."""
        if self.stopped_at is not None:
            return math.nan
        last = self.losses[-FINAL_STEPS:]
        return sum(last) / len(last)

    @property
    def recipe_name(self) -> str:
        return self.recipe.name

    @property
    def curve(self) -> tuple[float | None, ...]:
        """Losses to five digits after the point, None where one is not finite."""
        return tuple(finite_or_none(round(loss, 5)) for loss in self.losses)

    @property
    def cpu_rounded_s(self) -> float:
        return round(self.cpu_s, 2)


def _check(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InputError(f"{what} {value:g} is outside {least:g} … {most:g}")
