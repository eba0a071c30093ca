"""What a kernel's time formula is given: the card's figures, the number format's bytes, and a few fitted numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trilemma.data.files import read_data
from trilemma.errors import InputError, UnknownName
from trilemma.hardware.accelerator import Accelerator
from trilemma.timing.roofline import peak_flops


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One fitted number of a formula: where a fit starts, the bounds that physics sets, and what it means.

    ``required`` is False for numbers that some tables cannot give. ``choices`` are the values of a number that counts
    alternatives: each is tried, none is between two others.
    """

    name: str
    start: float
    low: float
    high: float
    meaning: str
    required: bool = True
    choices: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCoefficients:
    """One kernel on one card: ``values`` by the names of the formula's parameters, the rest from the card and the format.

    ``flops_per_s`` and ``bytes_per_s`` are datasheet figures (dense peak of the format in which the kernel multiplies, memory
    bandwidth), ``link_bytes_per_s`` one direction; shares in ``values`` are of them. ``weight_bytes`` is the mean size of one
    stored element with its scales. ``multiprocessors`` and ``l2_bytes`` are 0 where the card's data file states none: a
    formula then counts no waves and no cache.
    """

    kernel: str
    engine: str
    dtype: str
    values: Mapping[str, float]
    flops_per_s: float
    bytes_per_s: float
    link_bytes_per_s: float
    multiprocessors: float
    l2_bytes: float
    weight_bytes: float

    def __getitem__(self, name: str) -> float:
        return self.values[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelFormat:
    """How a kernel stores and multiplies: mean bytes of a stored element with its scales, and the units it runs on."""

    name: str
    weight_bytes: float
    compute: str
    stand_ins: tuple[str, ...]


@cache
def kernel_formats() -> Mapping[str, KernelFormat]:
    """The number formats of kernels by name (``data/coefficients/kernel_formats.toml``)."""
    return {
        name: KernelFormat(
            name=name,
            weight_bytes=row["weight_bytes"],
            compute=row["compute"],
            stand_ins=tuple(row.get("stand_ins", ())),
        )
        for name, row in read_data("coefficients/kernel_formats.toml")["formats"].items()
    }


def kernel_format(dtype: str) -> KernelFormat:
    """The format called ``dtype``. Raises `UnknownName`."""
    formats = kernel_formats()
    if dtype not in formats:
        raise UnknownName("kernel number format", dtype, formats)
    return formats[dtype]


def on_card(
    accelerator: Accelerator, *, kernel: str, engine: str, dtype: str, values: Mapping[str, float]
) -> KernelCoefficients:
    """``values`` set beside the figures of ``accelerator`` and of the format ``dtype``."""
    stored = kernel_format(dtype)
    link = accelerator.link.bytes_per_s.value if accelerator.link is not None else None
    if link is None and accelerator.pcie_bytes_per_s is not None:
        link = accelerator.pcie_bytes_per_s.value
    return KernelCoefficients(
        kernel=kernel,
        engine=engine,
        dtype=dtype,
        values=values,
        flops_per_s=peak_flops(accelerator, stored.compute),
        bytes_per_s=accelerator.bandwidth_bytes_per_s.value,
        link_bytes_per_s=link or 0.0,
        multiprocessors=_fact(accelerator, "multiprocessors"),
        l2_bytes=_fact(accelerator, "l2_bytes"),
        weight_bytes=stored.weight_bytes,
    )


def check_values(kernel: str, parameters: tuple[Parameter, ...], values: Mapping[str, Any]) -> None:
    """Refuse values that do not belong to a formula. Raises `InputError` naming the first that is missing or unknown."""
    unknown = sorted(set(values) - {parameter.name for parameter in parameters})
    missing = [parameter.name for parameter in parameters if parameter.required and parameter.name not in values]
    if unknown or missing:
        what = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is not known"
        raise InputError(f"coefficients of {kernel}: {what}")


def _fact(accelerator: Accelerator, name: str) -> float:
    figure = accelerator.facts.get(name)
    return figure.value if figure is not None else 0.0
