"""Terms of serving fitted to runs of engines: multipliers of the spec sheet's coefficients, and where they come from.

Kept by what a deployment is (engine, card, precision), never by model. Levels add up as logarithms; a deployment that was
not measured has the levels that it shares with those that were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.catalogue import find
from trilemma.hardware.number_formats import halves_sums
from trilemma.models.architecture import Model
from trilemma.plans import Layout
from trilemma.timing.coefficients import fitted_terms
from trilemma.timing.distance import DISTANCES, Seen, shape_of
from trilemma.timing.operators import ModelWork

#: Levels of offsets, from what all share to one deployment. Chips are a generation and its kind of memory, whatever the engine
#: (H100 and H200 are one die); a site is an engine on a card, whatever the precision; a format is a precision on chips under any
#: engine, since engines take kernels from the same libraries; memory a precision under an engine on one kind of memory, beside
#: HBM: kernels reach a bus of one kind alike over generations.
LEVELS = ("shared", "engine", "chips", "card", "generation", "site", "format", "memory", "kind", "deployment")


def keys_of(engine: str, accelerator: Accelerator, precision: str) -> tuple[str, ...]:
    """The key of a deployment at each of `LEVELS`."""
    chips = chips_of(accelerator)
    own, card = f"{engine} {chips}", f"{engine} {accelerator.id}"
    kind = memory_class(accelerator)
    memory = kind if kind == "hbm" else f"{engine} {kind} {precision}"
    precise = (f"{chips} {precision}", memory, f"{own} {precision}", f"{card} {precision}")
    return ("all", engine, chips, accelerator.id, own, card, *precise)


def chips_of(accelerator: Accelerator) -> str:
    """The generation of a card and its kind of memory, such as ``Hopper hbm`` or ``Ada gddr``: cards that differ in the rest
    alone (clocks, multiprocessors, size of the memory) run the same kernels."""
    return f"{accelerator.architecture.split(' ')[0]} {memory_class(accelerator)}"


def memory_class(accelerator: Accelerator) -> str:
    """hbm, gddr, or memory that a GPU shares with its host, which hangs on the maker of both: apple, unified (NVIDIA), shared."""
    text = accelerator.memory_type.lower()
    if accelerator.unified_memory or "lpddr" in text:
        return {"apple": "apple", "nvidia": "unified"}.get(accelerator.vendor.lower(), "shared")
    return "hbm" if "hbm" in text else "gddr"


@cache
def _told_by(card: str) -> tuple[bool, bool]:
    """Whether runs on a card of the catalogue tell of GDDR memory, and of sums at half rate."""
    accelerator = find(card)
    return memory_class(accelerator) == "gddr", halves_sums(accelerator)


@cache
def _of_die(card: str, others: tuple[str, ...], *, nearest: bool = False) -> Accelerator | None:
    """Of ``others`` the one of the chips of ``card`` with the least bandwidth, or with that which is nearest to its own."""
    own = find(card)
    alike = [one for other in others if chips_of(one := find(other)) == chips_of(own)]
    near = own.bandwidth_bytes_per_s.value if nearest else 1.0
    return min(alike, key=lambda one: abs(np.log(one.bandwidth_bytes_per_s.value / near)), default=None)


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
    """By which factor measured ``figure`` values lie above or below predicted ones in nine of ten rows, of deployments at one
    `distance` from those fitted: `low` to `high`, the prediction in the middle of them. ``figure`` is named by `loaded_as`.

    ``family`` is dense or mixture, "" any. ``half`` is the logarithm; it stands on ``blocks`` that were left out of the fit, each
    weighing the same, of ``rows``.
    """

    figure: str
    family: str
    distance: str
    half: float
    blocks: int
    rows: int

    @property
    def low(self) -> float:
        return float(np.exp(-self.half))

    @property
    def high(self) -> float:
        return float(np.exp(self.half))


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


#: Requests in flight beyond which figures are off by more: waiting, caches at their end and schedulers decide there.
_MANY = 256
_TIME_OF_PHASE = {"prefill": "ttft", "decode": "tpot"}


def loaded_as(figure: str, in_flight: float) -> str:
    """The name of a figure under its kind of load, among spreads and publishers."""
    return f"{figure} of many" if in_flight > _MANY else figure


def served_as(work: ModelWork, layout: Layout) -> str:
    """What a model and its layout are to the cards: two models of the same sizes are one."""
    degrees = " ".join(f"{name.upper()}{int(np.max(getattr(layout, name)))}" for name in ("tp", "pp", "dp", "ep"))
    return f"{work.layers} layers of {work.hidden}, {work.flops_per_token() / 1e9:.2f} GFLOP a token, {degrees}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingTerms:
    """Logarithms of multipliers: ``offsets[level][key][term]``; and how far measured figures lie from predicted ones.

    ``seen`` is what they were fitted to, ``figures`` which figures its runs gave by engine, ``origins`` who published them;
    ``apart`` how much farther (half-widths, logarithms) figures of others lie off. ``profile`` names a user's profile put on top
    and the deployment that it is for; ``own`` are its error bars. ``anchors`` are measured points of the very deployment
    (`trilemma.timing.anchoring.Anchors`).
    """

    offsets: tuple[Mapping[str, Mapping[str, float]], ...]
    spreads: tuple[Spread, ...] = ()
    seen: Seen = field(default_factory=Seen)
    figures: Mapping[str, frozenset[str]] = field(default_factory=dict)
    origins: frozenset[str] = frozenset()
    apart: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    profile: tuple[str, str] | None = None
    own: OwnSpread | None = None
    anchors: Any = None

    def factors(self, engine: str, accelerator: Accelerator, precision: str) -> dict[str, float]:
        """The multiplier of every term for one deployment; one that was not measured has the levels that it shares."""
        untold = self.untold(engine, accelerator, precision)
        sums = dict.fromkeys(fitted_terms(), 0.0)
        for known, key in zip(self.offsets, self.keys(engine, accelerator, precision), strict=True):
            for term, offset in known.get(key, {}).items():
                sums[term] += offset if term not in untold else 0.0
        return {term: float(np.exp(np.clip(total, -4.0, 4.0))) for term, total in sums.items()}

    def keys(self, engine: str, accelerator: Accelerator, precision: str) -> tuple[str, ...]:
        """The key of a deployment at each of `LEVELS` as its runs, or those that speak for it, have it."""
        own = f"{engine} {accelerator.id} {precision}"
        keys = keys_of(engine, self.told_by(engine, accelerator), precision)
        return (*keys[:-1], own if self.offsets and own in self.offsets[-1] else keys[-1])

    def told_by(self, engine: str, accelerator: Accelerator) -> Accelerator:
        """The card whose runs speak for ``accelerator`` under ``engine``: itself, the nearest measured one of its die, or, where
        the engine ran on none, the least one that others ran on.

        Cards with HBM of one generation run the same kernels; what sets them apart stands on their datasheets. With levels of
        its own a card with more of everything would be told slower for want of runs.
        """
        if memory_class(accelerator) != "hbm" or not self.offsets:
            return accelerator
        sites, boards = (self.offsets[LEVELS.index(level)] for level in ("site", "card"))
        if f"{engine} {accelerator.id}" in sites:
            return accelerator
        own = tuple(site.split(" ", 1)[1] for site in sites if site.startswith(f"{engine} "))
        return _of_die(accelerator.id, own, nearest=True) or _of_die(accelerator.id, tuple(boards)) or accelerator

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
        gddr, halved = memory_class(accelerator) == "gddr", precision.startswith("16-bit") and halves_sums(accelerator)
        if not (gddr or halved):
            return frozenset()
        told = [_told_by(key.split(" ", 2)[1]) for key in self.offsets[-1] if key.startswith(f"{engine} ")]
        found: tuple[str, ...] = ()
        if gddr and not any(tells for tells, _ in told):
            found += ("cache_stream",)
        if halved and not any(tells for _, tells in told):
            found += ("matmul", "prefill_matmul")
        return frozenset(found)

    def distance(self, engine: str, accelerator: Accelerator, precision: str, model: Model) -> str:
        """The class of ``model`` on a deployment, of `trilemma.timing.distance.DISTANCES`."""
        return self.seen.distance(engine=engine, card=accelerator.id, precision=precision, shape=shape_of(model))

    def told_as(self, engine: str, figure: str) -> str:
        """The figure by whose class one is bounded: of a rate of one phase the time of that phase, where runs of the engine told
        such times. Bounds are symmetric, so a rate's are its time's."""
        time = _TIME_OF_PHASE.get(figure, figure)
        return time if time in self.figures.get(engine, frozenset()) else figure

    def half(
        self, figure: str, *, family: str, distance: str, in_flight: float, fitted_origin: bool = False
    ) -> float | None:
        """Half-width (logarithm) of nine in ten figures of a class at such a load, None where no class has any: what deployments
        at this distance are off by, beside (squares add) what sets those apart whose runs were not fitted, as a user."""
        spread = self.spread(figure, family=family, distance=distance, in_flight=in_flight)
        if spread is None or fitted_origin:
            return None if spread is None else spread.half
        apart = self.apart.get(loaded_as(figure, in_flight), self.apart.get(figure, 0.0))
        return math.hypot(spread.half, apart)

    def spread(self, figure: str, *, family: str, distance: str, in_flight: float = 0.0) -> Spread | None:
        """That of the class, of such loads where it has any; one that has none takes the next farther away."""
        farther = list(DISTANCES)[list(DISTANCES).index(distance) :]
        known = {(one.figure, one.family, one.distance): one for one in self.spreads}
        kinds = [(name, wanted) for name in (loaded_as(figure, in_flight), figure) for wanted in (family, "")]
        found = (known.get((*kind, far)) for far in farther for kind in kinds)
        return next((one for one in found if one is not None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """How far each term may depart at each level: standard deviations of its logarithm; 0 where a level has no such term."""

    widths: Mapping[str, tuple[float, ...]]

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(self.widths)


@cache
def priors() -> Priors:
    """The priors as shipped (``data/coefficients/spec_sheet.toml``)."""
    return Priors(
        widths={
            term: tuple(row.width * row.levels.get(level, 0.0) for level in LEVELS)
            for term, row in fitted_terms().items()
        }
    )


@cache
def shipped() -> ServingTerms:
    """The terms as shipped (``data/coefficients/serving_terms.json``)."""
    return from_document(read_data("coefficients/serving_terms.json"))


def from_document(document: Mapping[str, Any]) -> ServingTerms:
    """Terms as written by `trilemma.measured.serving.speed.document.to_text`."""
    levels = tuple(
        {
            key: dict(zip(document["terms"][level], row, strict=True))
            for key, row in document["offsets"].get(level, {}).items()
        }
        for level in LEVELS
    )
    runs = [(*key.split(" ", 2), shape) for key, shapes in document.get("models", {}).items() for shape in shapes]
    return ServingTerms(
        offsets=levels,
        spreads=tuple(Spread(**row) for row in document.get("spread", ())),
        seen=Seen.of(runs),
        figures={engine: frozenset(names) for engine, names in document.get("figures", {}).items()},
        origins=frozenset(document.get("origins", ())),
        apart=document["apart"],
        source=document["source"],
    )
