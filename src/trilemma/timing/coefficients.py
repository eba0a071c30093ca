"""How much of a datasheet kernels reach: efficiencies and fixed times, read from a data file and keyed by the card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.formats.computing import stands_for
from trilemma.hardware.accelerator import Accelerator
from trilemma.quantities import Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficients:
    """Everything that timing needs beside datasheet figures, for one card.

    ``matmul`` is the share of the dense peak by compute format, ``stream`` the share of bandwidth by weight bits (16, 8, 4).
    ``numbers`` holds the rest by the names of ``data/coefficients/spec_sheet.toml``, which says what each is; they are read as
    attributes (``coefficients.step_s``; seconds where a name ends in ``_s``), and one that is not there is an `AttributeError`.
    ``known_card`` is False where no kernel of this kind of card was measured. Serving terms fitted to one engine scale these
    numbers (`scaled`).
    """

    card: str
    known_card: bool
    source: str
    matmul: Mapping[str, Numbers]
    stream: Mapping[int, Numbers]
    numbers: Mapping[str, Numbers]

    def __getattr__(self, name: str) -> Any:
        if name == "numbers" or name not in self.numbers:
            raise AttributeError(f"no coefficient {name!r} in spec_sheet.toml")
        return self.numbers[name]

    def with_numbers(self, **changed: Numbers) -> Coefficients:
        """These with some of `numbers` changed."""
        return replace(self, numbers={**self.numbers, **changed})

    def in_turn(self) -> Coefficients:
        """These where the host prepares a step only when the cards are done with the last one."""
        return self.with_numbers(host_overlap_power=1.0)

    def matmul_share(self, compute_format: str) -> Any:
        """Share of the dense peak of ``compute_format`` that large matrix products reach."""
        return next(self.matmul[name] for name in (*stands_for(compute_format), "bf16") if name in self.matmul)

    def stream_share(self, bits: float) -> Any:
        """Share of bandwidth at which weights of ``bits`` per element are read."""
        if bits > 16 and 32 in self.stream:
            return self.stream[32]
        return self.stream[16 if bits > 8.5 else 8 if bits > 6.5 else 4]


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedTerm:
    """What runs of engines may change: the coefficients that it ``scales``, the ``width`` of its prior (standard deviation of its
    logarithm), and the share of that width at each of the ``levels`` that has an offset of its own."""

    scales: tuple[str, ...]
    width: float
    levels: Mapping[str, float]


@cache
def fitted_terms() -> Mapping[str, FittedTerm]:
    """The terms of serving by name."""
    data = spec_sheet()
    return {
        name: FittedTerm(scales=tuple(row["scales"]), width=row["width"], levels=data["levels"][row["kind"]])
        for name, row in data["terms"].items()
    }


def scaled(coefficients: Coefficients, factors: Mapping[str, Numbers]) -> Coefficients:
    """``coefficients`` with `fitted_terms` multiplied by their factors, shares of a bandwidth up to all of it; the rest stays."""
    changed: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    capped = spec_sheet()["limits"]["at_most_one"]
    for term, factor in factors.items():
        for name in fitted_terms()[term].scales:
            value = getattr(coefficients, name)
            if isinstance(value, Mapping):
                tables[name] = {key: share * factor for key, share in value.items()}
            else:
                changed[name] = np.minimum(value * factor, 1.0) if name in capped else value * factor
    return replace(coefficients.with_numbers(**changed), **tables)


def headroom(coefficients: Coefficients) -> dict[str, float]:
    """Term → logarithm of the factor at which the last of its shares of a bandwidth reaches all of it, numbers.

    Source: a definition; ``[limits]`` of ``spec_sheet.toml`` names the shares.
    """
    limited = spec_sheet()["limits"]["at_most_one"]
    capped = {term: [name for name in row.scales if name in limited] for term, row in fitted_terms().items()}
    return {
        term: max(-float(np.log(getattr(coefficients, name))) for name in names)
        for term, names in capped.items()
        if names
    }


def at_datasheet(coefficients: Coefficients) -> Coefficients:
    """``coefficients`` of kernels that reach the datasheet and wait for nothing: every share 1, every fixed time 0.

    What is work and no loss stays: padding to tiles, distinct experts, the busiest rank of an expert group, and the part of
    a prefill that hides behind the steps it is mixed into.
    """
    best: dict[str, Any] = dict.fromkeys(spec_sheet()["limits"]["one_at_datasheet"], 1.0)
    best |= {name: 0.0 for name in coefficients.numbers if name.endswith("_s")}
    best |= {"overlap_power": np.inf, "interference": np.minimum(coefficients.interference, 1.0)}
    return replace(
        coefficients.with_numbers(**best), matmul={"bf16": 1.0}, stream=dict.fromkeys(coefficients.stream, 1.0)
    )


def coefficients_for(accelerator: Accelerator, engine: str = "") -> Coefficients:
    """The coefficients of ``accelerator``'s kind of card under the kernels of ``engine``; cards never measured share the row "any
    other card"."""
    from trilemma.timing.own_rates import as_measured

    chips = accelerator.architecture.split(" ")[0]
    found = _coefficients(accelerator.vendor, chips, accelerator.compute_capability, engine)
    found = found.with_numbers(**_at_own_clock(found, accelerator, engine)) if found.clocked else found
    return as_measured(found, accelerator) if accelerator.measured else found


def kernels_of(engine: str) -> str:
    """The engine whose kernels ``engine`` runs: itself, unless the data say that it is built on another."""
    return str(spec_sheet()["kernels_of"].get(engine, engine))


#: FP32 lanes of a multiprocessor of the cards that say ``clocked``, two FLOPs each.
_LANES = 128
_CLOCKED = ("kernel_s", "attention_kernel_s", "experts_kernel_s")


def _at_own_clock(found: Coefficients, accelerator: Accelerator, engine: str) -> dict[str, Numbers]:
    """Fixed times of kernels at the clock of ``accelerator``, none where its file does not tell it, or the engine has its own.

    Seconds, a table of numbers by name. Source: ``clock_hz`` of ``spec_sheet.toml``.
    """
    peak, units = accelerator.peak_flops.get("fp32"), accelerator.facts.get("multiprocessors")
    if peak is None or units is None:
        return {}
    slower = found.clock_hz * 2 * _LANES * units.value / peak.value
    own = spec_sheet()["engine_kernels"].get(engine, {})
    return {} if any(name in own for name in _CLOCKED) else {name: found.numbers[name] * slower for name in _CLOCKED}


@cache
def _coefficients(maker: str, chips: str, capability: float | None, engine: str) -> Coefficients:
    data = spec_sheet()
    if "nvidia" in maker.lower():
        alike = [card for card in data["card"] if capability in card["compute_capabilities"]]
    else:
        alike = [card for card in data["card"] if chips in card.get("chips", ())]
    known = bool(alike)
    chosen = alike[0] if known else next(card for card in data["card"] if card["name"] == "any other card")
    numbers: dict[str, Any] = {"clocked": False}
    for row in (data["kernels"], data["collectives"], data["host"], chosen, data["engine_kernels"].get(engine, {})):
        numbers |= {name: value for name, value in row.items() if isinstance(value, int | float)}
        for table, own in (("by_maker", maker), ("by_chips", chips)):
            numbers |= {name: told[own] for name, told in row.get(table, {}).items() if own in told}
    return Coefficients(
        card=chosen["name"],
        known_card=known,
        source=data["sources"][chosen["source"]],
        matmul=chosen["matmul"],
        stream={int(key.removeprefix("bits")): share for key, share in chosen["stream"].items()},
        numbers=numbers,
    )


@cache
def spec_sheet() -> Mapping[str, Any]:
    """The data file of spec-sheet timing, as read."""
    return read_data("coefficients/spec_sheet.toml")
