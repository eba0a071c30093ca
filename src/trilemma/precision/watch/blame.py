"""Findings about numbers that are not finite: the parameter or the first operator that a bad pass or gradient came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trilemma.precision.watch.findings import Kind, WatchFinding, rewrite
from trilemma.precision.watch.finite import is_bad
from trilemma.precision.watch.first_bad import FirstBad, first_bad_operator


def blame_pass(
    model: torch.nn.Module, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, step: int
) -> WatchFinding:
    """What broke a pass (``call`` of ``args`` and ``kwargs``): a parameter, or the first operator that made it so."""
    for name, parameter in model.named_parameters():
        if is_bad(parameter):
            return _finding(
                "parameter_not_finite", name, step,
                f"the parameter {name} is not finite: an earlier step broke it",
                "skip steps whose gradients are not finite, clip gradients, or lower the learning rate",
            )  # fmt: skip
    try:
        bad = _run_again(model, call, args, kwargs)
    except Exception as error:
        return _finding(
            "not_finite", ".x", step, f"the output is not finite, and the pass cannot run again ({type(error).__name__})",
            "run the same inputs through the model under torch.autograd.set_detect_anomaly(True)",
        )  # fmt: skip
    if bad is None:
        return _finding(
            "not_finite", ".x", step, "the output is not finite, and was when the pass ran again",
            "look at what is random in the pass (dropout, sampling) or at inputs that were not finite",
        )  # fmt: skip
    return _finding(
        "not_finite", f"{bad.module}.x", step,
        f"the first number that is not finite comes from {bad.operator} in {bad.module or 'the model itself'}"
        f" (inputs {bad.least:.3g} to {bad.most:.3g})",
        rewrite(bad.operator),
    )  # fmt: skip


def blame_gradient(parameters: Mapping[str, torch.nn.Parameter], *, step: int) -> WatchFinding | None:
    """The parameter nearest to the loss whose gradient is not finite: backward reached it first."""
    bad = [name for name, parameter in parameters.items() if parameter.grad is not None and is_bad(parameter.grad)]
    if not bad:
        return None
    return _finding(
        "gradient_not_finite", bad[-1], step,
        f"the gradient of {bad[-1]} is not finite, with those of {len(bad) - 1} other parameters",
        "lower the loss scale, or keep roots and divisions of what follows this module away from zero",
    )  # fmt: skip


def _run_again(
    model: torch.nn.Module, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> FirstBad | None:
    if call is not model and not getattr(model, "automatic_optimization", True):
        raise RuntimeError("a training step that moves weights itself must not run twice")
    return first_bad_operator(model, args, kwargs, call=call)


def _finding(kind: Kind, where: str, step: int, says: str, remedy: str) -> WatchFinding:
    module, _, tensor = where.rpartition(".")
    return WatchFinding(
        kind=kind, module=module, tensor=tensor, step=step, value=math.nan, bound=math.nan, says=says, remedy=remedy
    )  # fmt: skip
