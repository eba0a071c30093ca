"""How far figures of other publishers lie from what was fitted: the least that bounds of answers to users may be.

Publishers are few and each is off in its own way (default flags, other releases, what their rows leave unsaid), so each weighs
the same, and what their widths are worth shows where they are made of the others alone (`held`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trilemma.measured.serving.speed.figures import SpeedFigures
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.measured.serving.speed.spread import half_width
from trilemma.measured.tables import Row
from trilemma.models.architecture import ExpertFfn
from trilemma.quantities import Array
from trilemma.timing.serving_terms import ServingTerms, published_as

#: Share of the figures of other publishers that bounds are to hold.
INSIDE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One figure of a publisher whose runs were not fitted: measured over predicted, and the half-width (logarithm) of its class
    of distance; ``name`` is the figure and its kind of load."""

    name: str
    origin: str
    ratio: float
    own: float


def published(
    rows: Sequence[Row],
    questions: Sequence[SpeedQuestion | str],
    benches: Sequence[SpeedFigures],
    predicted: Array,
    far: Sequence[str],
    terms: ServingTerms,
) -> list[Published]:
    """Figures of origins that ``terms`` were not fitted to, without rows of tier C and those at a rate, of which it is not known
    what was in flight."""
    found = []
    for bench in benches:
        for at, figure, measured in zip(bench.at.tolist(), bench.quantity, bench.measured, strict=True):
            row, question = rows[at], questions[at]
            assert isinstance(question, SpeedQuestion)
            known = np.isfinite(predicted[at]) and question.rate is None and row.text("tier").upper() != "C"
            if known and row.text("origin") not in terms.origins:
                mixture = any(isinstance(layer.ffn, ExpertFfn) for layer in question.model.layers)
                name = terms.told_as(bench.engine, str(figure))
                spread = terms.spread(name, family="mixture" if mixture else "dense", distance=far[at])
                found.append(
                    Published(
                        name=published_as(name, question.concurrency),
                        origin=row.text("origin"),
                        ratio=float(measured / predicted[at]),
                        own=spread.half if spread is not None else 0.0,
                    )
                )
    return found


def widths_of(found: Iterable[Published]) -> dict[str, float]:
    """Logarithms within which nine of ten figures lie, each publisher weighing the same."""
    by_name: dict[str, dict[str, list[float]]] = {}
    for one in found:
        by_name.setdefault(one.name, {}).setdefault(one.origin, []).append(one.ratio)
    return {name: half_width(list(origins.values()), inside=INSIDE) for name, origins in sorted(by_name.items())}


def held(found: Sequence[Published]) -> dict[tuple[str, str], tuple[int, float, float]]:
    """Of each figure and publisher: rows, the share inside bounds made of the other publishers alone, and their half-width."""
    result = {}
    for name, origin in sorted({(one.name, one.origin) for one in found}):
        others = widths_of(one for one in found if one.name == name and one.origin != origin)
        width = others.get(name, 0.0)
        mine = [one for one in found if (one.name, one.origin) == (name, origin)]
        inside = [abs(np.log(one.ratio)) <= max(width, one.own) for one in mine]
        result[name, origin] = len(mine), float(np.mean(inside)), width
    return result
