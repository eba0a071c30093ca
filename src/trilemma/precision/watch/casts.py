"""Casts that a recipe would make, tried beside the model on a sample of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from trilemma.precision.lab.alarms import Thresholds
from trilemma.precision.lab.numerics import Numerics
from trilemma.precision.lab.recipes import LabRecipe
from trilemma.precision.lab.scaling import largest_magnitude
from trilemma.precision.signals import TensorSignals
from trilemma.precision.watch.findings import WatchFinding, overflow, underflow
from trilemma.precision.watch.finite import stored_here

#: A cast is tried on so many rows of a tensor: fewer where rows are long, since what many numbers show few rows show too.
_MOST_ROWS, _LEAST_ROWS, _ELEMENTS = 128, 32, 2**16
_KEPT_PASSES = 1000


class CastTrials:
    """Signals of tensors cast as ``recipe`` would: ``history`` holds those of the last judged passes."""

    def __init__(self, recipe: LabRecipe, limits: Thresholds) -> None:
        self.recipe = recipe
        self.limits = limits
        self.numerics = Numerics(recipe, seed=0)
        self.history: dict[int, dict[tuple[str, str], TensorSignals]] = {}

    @torch.no_grad()
    def tried(
        self, name: str, role: str, values: torch.Tensor, *, judged_pass: int | None, step: int
    ) -> Iterator[WatchFinding]:
        """Cast a sample of ``values`` beside the model and judge what is kept of it in ``judged_pass``; with None scales of
        delayed scaling learn its magnitude alone."""
        # Copied: every operator that follows is quicker on neighbouring numbers.
        sample = _some_rows(stored_here(values.detach())).float().contiguous()
        if sample.numel() == 0:
            return
        if role == "g" and self.recipe.loss_scale != 1.0:
            sample = sample * self.recipe.loss_scale
        amax = largest_magnitude(sample)
        if not math.isfinite(amax):
            return
        if judged_pass is None:
            self.numerics.learn(name, role, amax)
            return
        self.numerics.keep(name, role, sample)
        signals = self.numerics.tensors.get((name, role))
        if signals is not None:
            self.history.setdefault(judged_pass, {})[name, role] = signals
            while len(self.history) > _KEPT_PASSES:
                del self.history[next(iter(self.history))]
            yield from self._judged(name, role, signals, step)

    def _judged(self, name: str, role: str, signals: TensorSignals, step: int) -> Iterator[WatchFinding]:
        limits = self.limits
        if (
            signals.overflows_percent > limits.overflows_percent_above
            and signals.sqnr_db < limits.overflowing_sqnr_db_below
        ):
            yield overflow(name, role, signals, self.recipe.name, limits.overflows_percent_above, step)
        if role == "g" and signals.underflows_percent > limits.gradient_underflows_percent_above and signals.amax > 0:
            yield underflow(name, role, signals, self.recipe.name, limits.gradient_underflows_percent_above, step)


def _some_rows(values: torch.Tensor) -> torch.Tensor:
    """Rows of ``values`` (…, columns), evenly over all of them."""
    if values.numel() == 0:
        return values
    columns = values.shape[-1]
    wanted = max(_LEAST_ROWS, min(_MOST_ROWS, _ELEMENTS // columns))
    rows = values.reshape(-1, columns)
    return rows[:: max(1, rows.shape[0] // wanted)]
