"""Whether an accelerator runs a format: in its matrix units, by kernels that expand it to 16 bits, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from trilemma.data.files import read_data
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator
from trilemma.precision.plan import PrecisionPlan

How = Literal["matrix units", "expanded", "no"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """How one pair of formats runs on an accelerator, and what to know about it."""

    how: How
    why: str = ""


def runs(weights: Format, activations: Format, accelerator: Accelerator) -> Runs:
    """How products of ``weights`` and ``activations`` run on ``accelerator``.

    Formats multiplied as they are need matrix units for both; 16-bit activations need only a kernel that expands the
    weights (data/precision/kernels.toml).
    """
    if weights.bits >= 16 and weights.granularity == "none":
        return Runs(how="matrix units")
    if activations.bits < 16:
        needed = activations.hardware or activations.name
        if needed not in accelerator.hardware_formats:
            return Runs(how="no", why=f"{accelerator.name} has no {needed} matrix units")
        if weights.hardware != needed and not (weights.kind == "int" and needed == "int8" and weights.bits <= 8):
            return Runs(how="no", why=f"{weights.name} weights are not multiplied with {activations.name} activations")
        return Runs(how="matrix units", why=_fnuz(weights, accelerator))
    for row in _rows():
        if weights.name.startswith(tuple(row["formats"])):
            if _has(row, accelerator):
                return Runs(how="expanded", why=row.get("slow", ""))
            return Runs(
                how="no", why=f"no weight-only kernel for {weights.name} on {accelerator.name} ({row['source']})"
            )
    if weights.hardware and weights.hardware in accelerator.hardware_formats:
        return Runs(how="matrix units", why=_fnuz(weights, accelerator))
    return Runs(how="no", why=f"no kernel is known for {weights.name} on {accelerator.name}")


def obstacles(plan: PrecisionPlan, accelerator: Accelerator) -> tuple[str, ...]:
    """Why ``accelerator`` does not run ``plan``; empty where it does."""
    found = (runs(weights, activations, accelerator) for weights, activations in _pairs(plan))
    return tuple(dict.fromkeys(one.why for one in found if one.how == "no"))


def cautions(plan: PrecisionPlan, accelerator: Accelerator) -> tuple[str, ...]:
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


def _fnuz(weights: Format, accelerator: Accelerator) -> str:
    if weights.hardware == "fp8" and accelerator.fp8_flavour == "fnuz":
        return f"{accelerator.name} reads the FNUZ coding of FP8: OCP checkpoints are converted while they load"
    return ""


def _has(row: dict[str, Any], accelerator: Accelerator) -> bool:
    vendor = accelerator.vendor.lower()
    if vendor.startswith("nvidia"):
        return (accelerator.compute_capability or 0.0) >= row["nvidia"]
    return bool(row.get(vendor.split()[0], False))


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    document = read_data("precision/kernels.toml")
    return tuple(document["weight_only"])
