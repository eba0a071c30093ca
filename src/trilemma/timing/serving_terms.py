"""Terms of serving fitted to runs of engines: multipliers of the spec sheet's coefficients, and where they come from.

Kept by what a deployment is (engine, card, precision), never by model. Levels add up as logarithms; a deployment that was
not measured has the levels that it shares with those that were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.catalogue import find
from trilemma.hardware.number_formats import halves_sums
from trilemma.plans import Layout
from trilemma.timing.coefficients import SCALED_BY
from trilemma.timing.operators import ModelWork

#: Levels of offsets, from what all share to one deployment; a site is an engine on a card, whatever the precision.
LEVELS = ("shared", "engine", "card", "site", "kind", "deployment")
#: The first level that knows of a precision.
_PRECISE = LEVELS.index("kind")


def keys_of(engine: str, accelerator: Accelerator, precision: str) -> tuple[str, ...]:
    """The key of a deployment at each of `LEVELS`."""
    kind = memory_class(accelerator)
    card = f"{engine} {accelerator.id}"
    return ("all", engine, accelerator.id, card, f"{engine} {kind} {precision}", f"{card} {precision}")


def memory_class(accelerator: Accelerator) -> str:
    """hbm, gddr, or unified (memory that a GPU shares with its host)."""
    text = accelerator.memory_type.lower()
    if accelerator.unified_memory or "lpddr" in text:
        return "apple" if accelerator.vendor.lower() == "apple" else "unified"
    return "hbm" if "hbm" in text else "gddr"


def precision_of(work: ModelWork) -> str:
    """How most of a model's weights are stored and multiplied, such as ``8-bit fp8`` or ``4-bit bf16``."""
    sums: dict[str, float] = {}
    for product in work.dense:
        name = f"{round(product.bits)}-bit {product.computed_in}"
        sums[name] = sums.get(name, 0.0) + product.elements
    for expert in work.experts:
        name = f"{round(expert.bits)}-bit {expert.computed_in}"
        sums[name] = sums.get(name, 0.0) + expert.elements * expert.layers
    return max(sums, key=lambda name: sums[name]) if sums else "16-bit bf16"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Between which factors of a prediction nine of ten measured ``figure`` values lie, for one class of deployments.

    ``family`` is dense or mixture, ``measured`` whether runs of this very deployment were fitted; "" means any.
    """

    figure: str
    family: str
    measured: bool
    engine: str
    precision: str
    low: float
    high: float
    rows: int


#: Loads count as like those measured up to this factor beyond them.
_LIKE = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnSpread:
    """Error bars of one deployment from its own points: ``bounds`` are factors by figure ("tpot", "ttft").

    They hold for ``served`` (model and layout as `served_as` says) under loads like those of ``loads``: (fewest, most) of
    "isl", "osl" and "concurrency".
    """

    served: str
    bounds: Mapping[str, tuple[float, float]]
    loads: Mapping[str, tuple[float, float]]

    def holds(self, served: str, **load: float) -> bool:
        """Whether a load on ``served`` is like one that was measured."""
        inside = (self.loads[name][0] / _LIKE <= value <= self.loads[name][1] * _LIKE for name, value in load.items())
        return served == self.served and all(inside)


def served_as(work: ModelWork, layout: Layout) -> str:
    """What a model and its layout are to the cards: two models of the same sizes are one."""
    degrees = " ".join(f"{name.upper()}{int(np.max(getattr(layout, name)))}" for name in ("tp", "pp", "dp", "ep"))
    return f"{work.layers} layers of {work.hidden}, {work.flops_per_token() / 1e9:.2f} GFLOP a token, {degrees}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingTerms:
    """Logarithms of multipliers: ``offsets[level][key][term]``; and how far measured figures lie from predicted ones.

    ``profile`` names a user's profile put on top and the deployment that it is for; ``own`` are its error bars.
    """

    offsets: tuple[Mapping[str, Mapping[str, float]], ...]
    spreads: tuple[Spread, ...] = ()
    source: str = ""
    profile: tuple[str, str] | None = None
    own: OwnSpread | None = None

    def factors(self, engine: str, accelerator: Accelerator, precision: str) -> dict[str, float]:
        """The multiplier of every term for one deployment; one that was not measured has those of its nearest relative, and
        keeps its own where its engine was run on its card in another precision."""
        own = keys_of(engine, accelerator, precision)
        relative = keys_of(engine, self.stand_in(engine, accelerator, precision) or accelerator, precision)
        keys = (*own[:_PRECISE], *relative[_PRECISE:]) if own[_PRECISE - 1] in self.offsets[_PRECISE - 1] else relative
        untold = self.untold(engine, accelerator, precision)
        sums = dict.fromkeys(SCALED_BY, 0.0)
        for known, key in zip(self.offsets, keys, strict=True):
            for term, offset in known.get(key, {}).items():
                sums[term] += offset if term not in untold else 0.0
        return {term: float(np.exp(np.clip(total, -4.0, 4.0))) for term, total in sums.items()}

    def measured(self, engine: str, accelerator: Accelerator, precision: str) -> bool:
        """Whether this very deployment was among those that were fitted."""
        return keys_of(engine, accelerator, precision)[-1] in self.offsets[-1]

    def untold(self, engine: str, accelerator: Accelerator, precision: str) -> frozenset[str]:
        """Terms of which the runs of ``engine`` that were fitted tell nothing on such a card, however much on others.

        What attention loses on HBM it loses to latency: its kernels keep too few reads under way for memory that fast. On GDDR
        they reach the memory's rate from 16 MB of cache on, on HBM half of it (tables of aiconfigurator). What products of
        16-bit weights lose they lose to power and to feeding units that run at full rate; where sums in FP32 run at half rate
        nothing of that binds.
        """
        cards = [find(key.split(" ", 2)[1]) for key in self.offsets[-1] if key.startswith(f"{engine} ")]
        found: tuple[str, ...] = ()
        if memory_class(accelerator) == "gddr" and not any(memory_class(card) == "gddr" for card in cards):
            found += ("cache_stream",)
        if precision.startswith("16-bit") and halves_sums(accelerator) and not any(halves_sums(card) for card in cards):
            found += ("matmul", "prefill_matmul")
        return frozenset(found)

    def stand_in(self, engine: str, accelerator: Accelerator, precision: str) -> Accelerator | None:
        """The card whose runs speak for a deployment that was not measured: of the same generation and kind of memory, run
        under the same engine, in the same precision if any was, and nearest in bandwidth. None where the deployment itself
        was measured or no such card was."""
        if self.measured(engine, accelerator, precision) or accelerator.compute_capability is None:
            return None
        own = _catalogued(accelerator).bandwidth_bytes_per_s.value
        found = []
        for key in self.offsets[-1]:
            other_engine, card, other_precision = key.split(" ", 2)
            if other_engine == engine and _are_relatives(accelerator, other := find(card)):
                bandwidth = other.bandwidth_bytes_per_s.value
                distance = max(bandwidth, own) / min(bandwidth, own)
                found.append((other_precision != precision, distance, card))
        return find(min(found)[2]) if found else None

    def spread(self, figure: str, *, family: str, engine: str, precision: str, measured: bool) -> Spread | None:
        """The narrowest class that has figures of this kind."""
        wanted = ((family, engine, precision), (family, engine, ""), (family, "", ""), ("", "", ""))
        for names in wanted:
            for spread in self.spreads:
                own = (spread.family, spread.engine, spread.precision)
                if (spread.figure, spread.measured) == (figure, measured) and own == names:
                    return spread
        return None


def _catalogued(accelerator: Accelerator) -> Accelerator:
    """``accelerator`` as the catalogue has it, so that a figure changed to see what it is worth changes no relative."""
    try:
        return find(accelerator.id)
    except InputError:
        return accelerator


def _are_relatives(one: Accelerator, other: Accelerator) -> bool:
    """Same generation (the whole part of the compute capability) and kind of memory."""
    if one.compute_capability is None or other.compute_capability is None:
        return False
    same_kind = memory_class(one) == memory_class(other)
    return same_kind and int(one.compute_capability) == int(other.compute_capability)


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """How far each term may depart at each level: standard deviations of its logarithm; 0 where a level has no such term."""

    widths: Mapping[str, tuple[float, ...]]

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(self.widths)


@cache
def priors() -> Priors:
    """The priors as shipped (``data/coefficients/serving_priors.toml``)."""
    data = _read("serving_priors.toml")
    of_weights = data["weights"]
    levels = {term: of_weights["levels"] if term in of_weights["terms"] else data["levels"] for term in data["terms"]}
    return Priors(
        widths={
            term: tuple(width * levels[term].get(level, 0.0) for level in LEVELS)
            for term, width in data["terms"].items()
        }
    )


@cache
def shipped() -> ServingTerms:
    """The terms as shipped (``data/coefficients/serving_terms.json``)."""
    return from_document(_read("serving_terms.json"))


def from_document(document: Mapping[str, Any]) -> ServingTerms:
    """Terms as written by `to_document`."""
    names = document["terms"]
    levels = tuple(
        {key: dict(zip(names, row, strict=True)) for key, row in document["offsets"].get(level, {}).items()}
        for level in LEVELS
    )
    spreads = tuple(Spread(**row) for row in document.get("spread", ()))
    return ServingTerms(offsets=levels, spreads=spreads, source=document["source"])


def _read(name: str) -> Mapping[str, Any]:
    return read_data(f"coefficients/{name}")
