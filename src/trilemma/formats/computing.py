"""Where a number format is multiplied: which matrix units of a card take it as it is, and what does where they are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from trilemma.formats.catalogue import document

if TYPE_CHECKING:
    from trilemma.formats.formats import Format

#: What expanded weights are multiplied in; on cards without bfloat16 units FP16 runs at the rate that stands for it.
EXPANDED = "bf16"


class ComputingCard(Protocol):
    """What a card says of its matrix units."""

    @property
    def hardware_formats(self) -> tuple[str, ...]: ...
    @property
    def peak_flops(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixUnits:
    """One kind of matrix units, as ``data/formats.toml`` describes it under ``[units]``."""

    name: str
    bits: int
    activations: int
    beside: Mapping[int, str]
    instead: tuple[str, ...]
    twin: str
    wider: str
    kernels: Mapping[str, str]


def units(name: str) -> MatrixUnits | None:
    """The matrix units called ``name``; None where there are none (formats that are always expanded)."""
    return _units().get(name)


def computes_in(fmt: Format, card: ComputingCard, activation_bits: int | None = None) -> str:
    """The units of ``card`` that multiply weights stored as ``fmt``; see `Format.computes_in`."""
    own = _units().get(fmt.hardware)
    if (activation_bits or 0) >= 32:
        return "fp32"
    if own is None or fmt.bits >= 16:
        return EXPANDED
    met = activation_bits or own.activations
    if met >= 16:
        return EXPANDED
    for name in (own.name, *own.instead):
        if has_units(card, name):
            found = _units()[name]
            return found.beside.get(max(met, found.bits), name)
    return EXPANDED


def has_units(card: ComputingCard, name: str) -> bool:
    """Whether ``card`` has matrix units for ``name``; a file that lists none has those whose peak it states."""
    return name in card.hardware_formats or (not card.hardware_formats and name in card.peak_flops)


def stands_for(name: str) -> Iterable[str]:
    """``name``, its twin, and the units whose peak bounds it where a card states none, nearest first."""
    while name:
        yield name
        found = _units().get(name)
        if found is not None and found.twin:
            yield found.twin
        name = found.wider if found is not None else ""


def kernel_name(fmt: Format, computed_in: str) -> str:
    """What tables of kernels call weights stored as ``fmt`` that are multiplied in ``computed_in``."""
    own = _units().get(fmt.hardware)
    named = own.kernels.get(computed_in) if own is not None else None
    if named is not None:
        return f"{named}_block" if fmt.granularity == "block" else named
    return "bf16" if fmt.bits > 8.5 else "w8a16" if fmt.bits > 6.5 else "w4a16"


@cache
def _units() -> dict[str, MatrixUnits]:
    return {
        name: MatrixUnits(
            name=name,
            bits=row["bits"],
            activations=row.get("activations", row["bits"]),
            beside={int(bits): other for bits, other in row.get("beside", {}).items()},
            instead=tuple(row.get("instead", ())),
            twin=row.get("twin", ""),
            wider=row.get("wider", ""),
            kernels=row.get("kernels", {}),
        )
        for name, row in document()["units"].items()
    }
