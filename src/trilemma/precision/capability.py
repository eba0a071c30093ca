"""Which groups of a precision plan an accelerator runs, and what to know about those that it expands."""

from __future__ import annotations

from collections.abc import Iterable

from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.number_formats import runs
from trilemma.precision.plan import PrecisionPlan


def obstacles(plan: PrecisionPlan, accelerator: Accelerator) -> tuple[str, ...]:
    """Why ``accelerator`` does not run ``plan``; empty where it does."""
    found = (runs(weights, activations, accelerator) for weights, activations in _pairs(plan))
    return tuple(dict.fromkeys(one.why for one in found if one.how == "no"))


def warnings(plan: PrecisionPlan, accelerator: Accelerator) -> tuple[str, ...]:
    """What to know about running ``plan`` there: expanded weights save bytes, not arithmetic; FNUZ; slow kernels."""
    notes: list[str] = []
    for weights, activations in _pairs(plan):
        one = runs(weights, activations, accelerator)
        if one.how == "expanded":
            notes.append(
                f"{weights.name} weights are expanded to {activations.name} inside the product: fewer bytes, no faster units"
            )
        if one.why and one.how != "no":
            notes.append(one.why)
    return tuple(dict.fromkeys(notes))


def _pairs(plan: PrecisionPlan) -> Iterable[tuple[Format, Format]]:
    pairs = {(one.weights.name, one.activations.name): (one.weights, one.activations) for one in plan.groups}
    return pairs.values()
