"""The numerics of one run: every operand of every product passes here, is cast as the recipe says, and may be looked at."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from trilemma.precision.lab.casts import cast, largest_value
from trilemma.precision.lab.recipes import LabRecipe
from trilemma.precision.lab.scaling import (
    AmaxHistory,
    Kept,
    current_scale,
    hadamard,
    keep_in_blocks,
    keep_per_tensor,
    largest_magnitude,
)
from trilemma.precision.signals import TensorSignals, tensor_signals

Tensor: TypeAlias = torch.Tensor


class Numerics:
    """Casts of one run. ``shadow`` computes everything in BF16 and touches no state; ``watching`` records signals.

    ``tensors`` and ``fill`` hold what the last watched step showed, as `records.Probe` describes.
    """

    def __init__(self, recipe: LabRecipe, *, seed: int, device: str = "cpu") -> None:
        self.recipe = recipe
        self.step = 0
        self.shadow = False
        self.watching = False
        self.tensors: dict[tuple[str, str], TensorSignals] = {}
        self.fill = 0.0
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self._histories: dict[tuple[str, str], AmaxHistory] = {}
        self._remembered: dict[tuple[str, str], list[float]] = {}
        signs = torch.randint(0, 2, (16,), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
        self._signs = signs.to(device)
        self._spared: frozenset[str] = frozenset()

    @property
    def warming_up(self) -> bool:
        """Whether this step still runs in BF16 while the magnitudes are collected."""
        return self.step < self.recipe.warm_up_steps

    def spare(self, layers: list[str]) -> None:
        """Keep ``layers`` in BF16."""
        self._spared = frozenset(layers)

    def watch(self, on: bool) -> None:
        """Start or stop recording signals, from nothing."""
        self.watching = on
        if on:
            self.tensors, self.fill = {}, 0.0

    def remember(self) -> None:
        """Keep the histories as they are now, for `rewind`."""
        self._remembered = {key: list(history.seen) for key, history in self._histories.items()}

    def rewind(self) -> None:
        """Take the histories back to where they were remembered, so that the same step can be computed again."""
        for key, history in self._histories.items():
            history.seen.clear()
            history.seen.extend(self._remembered.get(key, ()))

    def learn(self, layer: str, role: str, amax: float) -> None:
        """Let the largest magnitude of a tensor enter the history of delayed scaling without casting the tensor."""
        if self.recipe.scaling == "delayed":
            self._history(layer, role).add(amax)

    def narrow(self, layer: str) -> bool:
        """Whether the products of ``layer`` run in low precision now."""
        return not self.shadow and layer not in self._spared

    def keep(self, layer: str, role: str, values: Tensor) -> Tensor:
        """``values`` (rows, columns) of role x, w or g as the product of ``layer`` sees them; scales run along columns."""
        if not self.narrow(layer):
            return values.bfloat16().float()
        name = self.recipe.backward if role == "g" else self.recipe.forward
        if name == "bf16":
            return values.bfloat16().float()
        kept = self._kept(layer, role, values, name)
        if self.watching and (layer, role) not in self.tensors:
            self._record(layer, role, values, kept)
        return values.bfloat16().float() if self.warming_up else kept.values

    def mix(self, values: Tensor) -> Tensor:
        """``values`` (summed axis, …) under the random Hadamard transform where the recipe has one."""
        return hadamard(values, self._signs) if self.recipe.hadamard else values

    def _kept(self, layer: str, role: str, values: Tensor, name: str) -> Kept:
        recipe = self.recipe
        stochastic = self.generator if role == "g" and recipe.stochastic_gradients else None
        if recipe.directional:
            return keep_in_blocks(values, name, recipe, weight=role == "w", generator=stochastic)
        match recipe.scaling:
            case "current":
                scale = current_scale(values, name)
            case "delayed":
                scale = self._delayed_scale(layer, role, values, name)
            case _:
                scale = 1.0
        return keep_per_tensor(values, name, scale=scale, overflow=recipe.overflow, generator=stochastic)

    def _delayed_scale(self, layer: str, role: str, values: Tensor, name: str) -> float:
        history = self._history(layer, role)
        scale = history.scale(largest_value(name), rule=self.recipe.history_rule, margin=self.recipe.margin)
        history.add(largest_magnitude(values))
        return scale

    def _history(self, layer: str, role: str) -> AmaxHistory:
        return self._histories.setdefault((layer, role), AmaxHistory(length=self.recipe.history))

    def _record(self, layer: str, role: str, values: Tensor, kept: Kept) -> None:
        signals = tensor_signals(values, kept.values, limit=kept.limit)
        self.tensors[layer, role] = signals
        if isinstance(kept.limit, float):
            fill = signals.amax / kept.limit
            self.fill = max(self.fill, fill if math.isfinite(fill) else math.inf)


class LowPrecisionProduct(torch.autograd.Function):
    """y = x wᵀ and its two backward products, each on cast operands with FP32 accumulation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: str, numerics: Numerics) -> Tensor:
        """x (tokens, in), weight (out, in) → (tokens, out)."""
        x_kept, weight_kept = numerics.keep(layer, "x", x), numerics.keep(layer, "w", weight)
        ctx.layer, ctx.numerics = layer, numerics
        ctx.again = numerics.recipe.directional and numerics.narrow(layer)
        ctx.save_for_backward(*((x, weight) if ctx.again else (x_kept, weight_kept)))
        return x_kept @ weight_kept.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        layer, numerics = ctx.layer, ctx.numerics
        kept = numerics.keep(layer, "g", gradient)
        if not ctx.again:
            return kept @ weight, kept.t() @ x, None, None
        # Groups run along the summed axis: outputs for the gradient of x, tokens for the gradient of the weight.
        x_gradient = kept @ numerics.keep(layer, "w", weight.t()).t()
        by_token = numerics.keep(layer, "g", numerics.mix(gradient).t())
        return x_gradient, by_token @ numerics.keep(layer, "x", numerics.mix(x).t()).t(), None, None


def store(values: Tensor, storage: str, generator: torch.Generator | None) -> Tensor:
    """Weights as they are kept between steps."""
    return values if storage == "fp32" else cast(values, storage, generator=generator)
