"""Weights that an optimizer step left where they were, on a few elements of every matrix."""

from __future__ import annotations

import torch

from trilemma.precision.signals import frozen_update_percent
from trilemma.precision.watch.finite import stored_here

#: Elements of a weight whose update is followed.
_ELEMENTS = 4096


class FrozenUpdates:
    """Looks at sampled steps: `remember` before the optimizer moves the weights, `frozen` after."""

    def __init__(self, *, percent_above: float) -> None:
        self.percent_above = percent_above
        self._before: dict[str, torch.Tensor] = {}
        self._frozen_before: set[str] = set()

    def remember(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        """Keep a few elements of every matrix (gains and biases are vectors: no recipe stores them in 8 bits)."""
        self._before = {name: _few(one).clone() for name, one in parameters.items() if one.ndim >= 2}

    def forget(self) -> None:
        self._before = {}

    def frozen(self, parameters: dict[str, torch.nn.Parameter]) -> dict[str, float]:
        """Name → percent of matrices that stood still in this remembered step and in the one before.

        Twice in a row: a warm-up from a learning rate of zero stands still for one step and rightly so.
        """
        if not self._before:
            return {}
        still: dict[str, float] = {}
        for name, old in self._before.items():
            gradient = parameters[name].grad
            # A sparse gradient asks few rows to move, and which ones the sample cannot tell.
            if gradient is None or gradient.layout != torch.strided:
                continue
            percent = frozen_update_percent([old], [_few(parameters[name])], asked=[_few(gradient)])
            if percent > self.percent_above:
                still[name] = percent
        again = {name: percent for name, percent in still.items() if name in self._frozen_before}
        self._frozen_before, self._before = set(still), {}
        return again


def _few(tensor: torch.Tensor) -> torch.Tensor:
    """Up to `_ELEMENTS` elements, evenly over the tensor."""
    flat = stored_here(tensor.detach()).reshape(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)]
