"""What an accelerator computes, what it expands, what it has no kernels for: the one table that every judgement asks.

Formats of matrix units stand in the accelerators' files and ``[units]`` of ``data/formats.toml``; kernels that expand weights
inside the product, and the compute capabilities that training kernels ask for, in ``data/precision``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from trilemma.data.files import read_data
from trilemma.formats.computing import EXPANDED, has_units
from trilemma.formats.formats import Format
from trilemma.hardware.accelerator import Accelerator

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
        if not has_units(accelerator, needed):
            return Runs(how="no", why=f"{accelerator.name} has no {needed} matrix units")
        if weights.hardware != needed and not (weights.kind == "int" and needed == "int8" and weights.bits <= 8):
            return Runs(how="no", why=f"{weights.name} weights are not multiplied with {activations.name} activations")
        return Runs(how="matrix units", why=_fnuz(weights, accelerator))
    for row in _rows():
        if weights.name.startswith(tuple(row["formats"])):
            if _has(row, accelerator):
                fast = accelerator.vendor.lower() in row.get("fast", ())
                return Runs(how="expanded", why="" if fast else row.get("slow", ""))
            return Runs(
                how="no", why=f"no weight-only kernel for {weights.name} on {accelerator.name} ({row['source']})"
            )
    if weights.hardware and has_units(accelerator, weights.hardware):
        return Runs(how="matrix units", why=_fnuz(weights, accelerator))
    return Runs(how="no", why=f"no kernel is known for {weights.name} on {accelerator.name}")


def expanded(weights: Format, accelerator: Accelerator, activation_bits: int | None) -> str | None:
    """What to say of quantised ``weights`` meant for matrix units that the card lacks; None where nothing is lost.

    Weight-only formats are meant to be expanded, and so are those that a checkpoint multiplies with 16-bit activations.
    """
    if not weights.hardware or weights.bits >= 16 or (activation_bits or 0) >= 16:
        return None
    if weights.computes_in(accelerator, activation_bits=activation_bits) != EXPANDED or weights.kind == "int":
        return None
    lacks = f"{accelerator.name} has no {weights.hardware} matrix units"
    one = runs(weights, _sixteen_bits(), accelerator)
    if one.how == "no":
        return f"{lacks}, and no kernel is known that expands {weights.name} weights there; {_instead(accelerator)}"
    return f"{lacks}: {weights.name} weights are expanded to 16 bits, fewer bytes but no faster products; {_instead(accelerator)}"


def training_lacks(matmul: str, accelerator: Accelerator) -> str | None:
    """Why ``accelerator`` cannot train with products cast to ``matmul`` (``fp8_tensor``, ``mxfp8``, ``nvfp4`` …), and what it
    can; None where it can."""
    if matmul == "same":
        return None
    name = matmul.partition("_")[0]
    if not has_units(accelerator, name):
        return f"{name} training needs {name} matrix units, which {accelerator.name} has not; {_training_instead(accelerator)}"
    least, refused = _training_capability(name)
    capability = accelerator.compute_capability
    if capability is not None and not least <= capability < refused:
        return (
            f"{name} training needs compute capability {least:g} or more and below {refused:g}, and {accelerator.name} has"
            f" {capability:g}; use an fp8 recipe or bf16"
        )
    return None


def _instead(accelerator: Accelerator) -> str:
    own = [name for name in ("nvfp4", "mxfp4", "mxfp8", "fp8") if has_units(accelerator, name)]
    names = own or (["w8a8"] if has_units(accelerator, "int8") else [])
    return f"its own units multiply {' and '.join(names)}" if names else "it multiplies 16-bit numbers alone"


def _training_instead(accelerator: Accelerator) -> str:
    return "use an fp8 recipe or bf16" if has_units(accelerator, "fp8") else "use a 16-bit recipe"


@cache
def _sixteen_bits() -> Format:
    from trilemma.formats.catalogue import get

    return get("bf16")


@cache
def _training_capability(name: str) -> tuple[float, float]:
    """(least, first refused) compute capability of any training kernel of ``name``."""
    document = read_data("precision/training_recipes.toml")
    ranges = [row["capability"] for row in document["recipe"] if row["state"].partition("-")[0] == name]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _fnuz(weights: Format, accelerator: Accelerator) -> str:
    if weights.hardware == "fp8" and accelerator.fp8_flavour == "fnuz":
        return f"{accelerator.name} reads the FNUZ coding of FP8: OCP checkpoints are converted while they load"
    return ""


def _has(row: dict[str, Any], accelerator: Accelerator) -> bool:
    vendor = accelerator.vendor.lower()
    if vendor.startswith("nvidia"):
        least: float = row["nvidia"]
        return (accelerator.compute_capability or 0.0) >= least
    return bool(row.get(vendor.split()[0], False))


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    document = read_data("precision/kernels.toml")
    return tuple(document["weight_only"])


def halves_sums(accelerator: Accelerator) -> bool:
    """Whether 16-bit products with sums in FP32 run at half the rate of the units: INT8 then has four times their peak, not two
    (GeForce from Turing on, by NVIDIA's architecture papers)."""
    half = accelerator.peak_flops.get("bf16") or accelerator.peak_flops.get("fp16")
    int8 = accelerator.peak_flops.get("int8")
    if half is None or int8 is None or accelerator.compute_capability is None:
        return False
    return int8.value > 3 * half.value
