"""A trace that looks like another and holds none of its requests: its statistics, and requests drawn from them.

What is kept: how many requests came in each part of its time (of twenty requests in the mean) and how unevenly within them, and
how many had prompts and outputs of about which lengths together (twenty classes each, by quantiles, finer at the long end).
Contents, sessions and tenants are not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.quantities import Array
from trilemma.simulation.serving.traffic import Arrival

#: Requests of a part of its time, fewest and most of these, and requests that are looked at.
_OF_A_PART, _FEWEST_PARTS, _MOST_PARTS, _MOST = 20, 12, 600, 2_000_000
#: Quantiles that bound classes of lengths.
_BOUNDS = (*np.linspace(0.0, 0.9375, 16).tolist(), 0.97, 0.985, 0.995, 0.999, 1.0)
#: Requests that a trace needs to have statistics.
_FEWEST = 50
#: Variations of gaps that a gamma distribution is drawn with.
_LEAST_CV, _MOST_CV = 0.05, 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceLikeness:
    """``counts`` of requests in equal parts of ``span_s``, the variation ``gap_cv`` of the gaps within parts; ``prompt_edges``
    and ``output_edges`` bound classes of lengths, ``together`` counts requests by both."""

    span_s: float
    counts: Array
    gap_cv: float
    prompt_edges: Array
    output_edges: Array
    together: Array

    @classmethod
    def of(cls, arrivals: Iterable[Arrival]) -> TraceLikeness:
        """The statistics of ``arrivals``. Raises `InputError` for fewer than fifty, or all at once."""
        table = np.array([(one.arrival_s, one.isl, one.osl) for one in itertools.islice(arrivals, _MOST)], dtype=float)
        if len(table) < _FEWEST or table[-1, 0] <= 0:
            raise InputError(
                f"{len(table)} requests at most tell no statistics; give at least {_FEWEST} that come over time"
            )
        times, prompts, outputs = table.T
        span_s = float(times[-1]) * (1 + 1 / len(times))
        parts = min(max(len(times) // _OF_A_PART, _FEWEST_PARTS), _MOST_PARTS)
        part = np.minimum((times / span_s * parts).astype(int), parts - 1)
        edges = [_edges(values) for values in (prompts, outputs)]
        together, _, _ = np.histogram2d(prompts, outputs, bins=edges)
        return cls(
            span_s=span_s, counts=np.bincount(part, minlength=parts).astype(float), gap_cv=_gap_cv(times, part),
            prompt_edges=edges[0], output_edges=edges[1], together=together,
        )  # fmt: skip

    def drawn(self, requests: int, seed: int) -> Iterator[Arrival]:
        """``requests`` requests at the rate of the original: it repeats its time as often as that takes."""
        random = np.random.default_rng(seed)
        shares = self.together.ravel() / self.together.sum()
        each_s, made, round_ = self.span_s / len(self.counts), 0, 0
        while made < requests:
            for at, count in enumerate(self.counts):
                here = int(count)
                if not here:
                    continue
                shape = 1 / self.gap_cv**2
                gaps = random.gamma(shape, 1.0, here + 1).cumsum()
                began_s = round_ * self.span_s + at * each_s
                times = began_s + gaps[:here] / gaps[-1] * each_s
                cells = random.choice(len(shares), here, p=shares)
                rows, columns = np.unravel_index(cells, self.together.shape)
                prompts, outputs = (
                    _within(edges, which, random)
                    for edges, which in ((self.prompt_edges, rows), (self.output_edges, columns))
                )
                for time_s, isl, osl in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True):
                    if made == requests:
                        return
                    made += 1
                    yield Arrival(time_s, isl, osl)
            round_ += 1


def _edges(values: Array) -> Array:
    """Bounds of classes that hold about as many values each; the first and last lie just outside."""
    found = np.unique(np.quantile(values, _BOUNDS))
    if len(found) == 1:
        found = np.array([found[0] - 0.5, found[0] + 0.5])
    found[0], found[-1] = max(found[0] - 0.5, 0.5), found[-1] + 0.5
    return found


def _gap_cv(times: Array, part: Any) -> float:
    """Variation of the gaps between requests about the mean of their part."""
    gaps = np.diff(times)
    inside = part[1:] == part[:-1]
    own = [gaps[inside & (part[1:] == at)] for at in range(int(part.max()) + 1)]
    means = np.array([one.mean() if len(one) else 0.0 for one in own])
    expected = means[part[1:]]
    kept = inside & (expected > 0)
    spread = float(np.std(gaps[kept] / expected[kept])) if np.any(kept) else 1.0
    return min(max(spread, _LEAST_CV), _MOST_CV) if math.isfinite(spread) else 1.0


def _within(edges: Array, which: Any, random: np.random.Generator) -> Any:
    """Whole lengths within their classes, even in the logarithm."""
    low, high = np.log(edges[which]), np.log(edges[which + 1])
    drawn = np.exp(low + (high - low) * random.random(len(which)))
    return np.maximum(np.rint(drawn), 1).astype(np.int64)
