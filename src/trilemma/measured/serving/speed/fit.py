"""Serving terms fitted to measured figures: one multiplier per term, shared by all and drawn towards it level by level.

A figure's multipliers are ``exp`` of the sum of its offsets at every level of `serving_terms.LEVELS`: shared, engine, card,
(engine, card), and for products of weights also (engine, kind of memory, precision) and (engine, card, precision).
Every offset has a normal prior about zero, so that a level departs from the one above it only as far as its figures say
(ridge on log offsets). Errors are logarithmic and large ones pull less than their square (pseudo-Huber).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.measured.serving.speed.figures import SpeedFigures, parts_of
from trilemma.quantities import Array
from trilemma.timing.coefficients import headroom
from trilemma.timing.serving_terms import LEVELS, Priors, ServingTerms

#: Errors beyond about this much (natural logarithm) pull less than their square.
_HUBER = 0.12
#: How far predictions are expected to be off, by kind of figure: their weight is the inverse.
_EXPECTED = {"tpot": 0.08, "ttft": 0.40, "output": 0.16, "decode": 0.08, "prefill": 0.16}
_STEP = 1e-4
_MOST_MOVE = 0.7
_MOST_OFFSET = 4.0
#: A fit ends where two rounds in a row gained less than this share of the cost, or damping beyond this much gains nothing.
_GAIN = 1e-4
_STUCK = 1e4


def fit(
    benches: Sequence[SpeedFigures], priors: Priors, *, start: ServingTerms | None = None, most_rounds: int = 40
) -> ServingTerms:
    """Offsets of every level that explain ``benches`` best (Levenberg-Marquardt on the penalised errors within
    bounds, damped by how far a step keeps what it promises: Nielsen 1999)."""
    problem = TermFit(benches, priors)
    here, damping, growth, slow = problem.at(problem.from_terms(start)), 1e-2, 2.0, 0
    for _ in range(most_rounds):
        tried, promised = problem.step(here, damping)
        there = problem.at(tried)
        gained = here.cost - there.cost
        if gained <= 0:
            damping, growth = damping * growth, growth * 2
            if damping > _STUCK:
                break
            continue
        damping, growth = max(damping * max(1 / 3, 1 - (2 * gained / promised - 1) ** 3), 1e-6), 2.0
        slow = slow + 1 if gained < _GAIN * here.cost else 0
        here = there
        if slow == 2:
            break
    return problem.to_terms(here.totals)


@dataclass(frozen=True, kw_only=True, slots=True)
class FitPoint:
    """Totals, the penalised cost there, its gradient and the normal matrix of errors and priors together."""

    totals: Array
    cost: float
    gradient: Array
    normal: Array


class TermFit:
    """The least-squares problem in the totals that deployments feel: of a term, the sum of its offsets at every level.

    Offsets have independent normal priors, so totals have a joint one whose covariance adds up, level by level, over deployments
    that share a key; a term that knows no precision has one total a site. The offsets of a fit are their conditional means given
    its totals (the same optimum as over all offsets, with a third of the unknowns; Rasmussen and Williams 2006, chapter 2).
    """

    def __init__(self, benches: Sequence[SpeedFigures], priors: Priors) -> None:
        self.parts = [part for bench in benches for part in parts_of(bench)]
        self.benches = [part.figures for part in self.parts]
        self.terms = priors.terms
        self.widths = priors.widths
        self.groups = {term: list(dict.fromkeys(self._group(one, term) for one in self.benches)) for term in self.terms}
        ends = np.cumsum([len(self.groups[term]) for term in self.terms])
        self.count = int(ends[-1])
        self.spans = {
            term: slice(int(end) - len(self.groups[term]), int(end)) for term, end in zip(self.terms, ends, strict=True)
        }
        self.of_bench = [
            np.array([self.spans[term].start + self.groups[term].index(self._group(one, term)) for term in self.terms])
            for one in self.benches
        ]
        self.precision = {term: np.linalg.inv(self._covariance(term)) for term in self.terms}
        self.highest = np.full(self.count, _MOST_OFFSET)
        for bench, own in zip(self.benches, self.of_bench, strict=True):
            room = headroom(bench.machine.coefficients)
            most = np.array([room.get(term, _MOST_OFFSET) for term in self.terms])
            self.highest[own] = np.minimum(self.highest[own], most)

    def _group(self, bench: SpeedFigures, term: str) -> tuple[str, ...]:
        """The keys by which deployments tell their totals of ``term`` apart."""
        return tuple(key if width > 0 else "" for key, width in zip(bench.keys, self.widths[term], strict=True))

    def _covariance(self, term: str) -> Array:
        keys = np.array(self.groups[term])
        total = np.zeros((len(keys), len(keys)))
        for level, width in enumerate(self.widths[term]):
            if width > 0:
                total += width**2 * (keys[:, None, level] == keys[None, :, level])
        return total

    def from_terms(self, start: ServingTerms | None) -> Array:
        totals = np.zeros(self.count)
        if start is not None:
            for term, span in self.spans.items():
                totals[span] = [
                    sum(known.get(key, {}).get(term, 0.0) for known, key in zip(start.offsets, keys, strict=True))
                    for keys in self.groups[term]
                ]
        return np.clip(totals, -_MOST_OFFSET, self.highest)

    def to_terms(self, totals: Array) -> ServingTerms:
        levels: list[dict[str, dict[str, float]]] = [{} for _ in LEVELS]
        for term, span in self.spans.items():
            pull = self.precision[term] @ totals[span]
            for level, width in enumerate(self.widths[term]):
                if width <= 0:
                    continue
                for keys, share in zip(self.groups[term], pull, strict=True):
                    row = levels[level].setdefault(keys[level], {})
                    row[term] = row.get(term, 0.0) + float(width**2 * share)
        return ServingTerms(offsets=tuple(levels))

    def at(self, totals: Array) -> FitPoint:
        """The problem as it stands at ``totals``, slopes by differences taken away from the bounds."""
        gradient, normal, cost = np.zeros(self.count), np.zeros((self.count, self.count)), 0.0
        for term, span in self.spans.items():
            gradient[span] = self.precision[term] @ totals[span]
            normal[span, span] = self.precision[term]
            cost += float(totals[span] @ gradient[span])
        for part, own in zip(self.parts, self.of_bench, strict=True):
            steps = np.where(totals[own] + _STEP > self.highest[own], -_STEP, _STEP)
            table = np.exp(totals[own] + np.vstack([np.zeros(len(own)), np.diag(steps)]))
            factors = {term: table[:, at : at + 1] for at, term in enumerate(self.terms)}
            errors = _weighted(part.predict(factors), part.figures)
            slopes = (errors[1:] - errors[0]) / steps[:, None]
            cost += float(errors[0] @ errors[0])
            gradient[own] += slopes @ errors[0]
            normal[np.ix_(own, own)] += slopes @ slopes.T
        return FitPoint(totals=totals, cost=cost, gradient=gradient, normal=normal)

    def step(self, here: FitPoint, damping: float) -> tuple[Array, float]:
        """(totals one damped step on, what a quadratic would gain); those at a bound that the gradient presses against stay."""
        stuck = (here.totals >= self.highest) & (here.gradient < 0)
        free = np.flatnonzero(~stuck)
        system = here.normal[np.ix_(free, free)]
        system[np.diag_indices(len(free))] *= 1 + damping
        moved = here.totals.copy()
        moved[free] += np.clip(np.linalg.solve(system, -here.gradient[free]), -_MOST_MOVE, _MOST_MOVE)
        moved = np.clip(moved, -_MOST_OFFSET, self.highest)
        way = moved - here.totals
        return moved, max(-float(way @ (2 * here.gradient + here.normal @ way)), 1e-12)


def _weighted(predicted: Any, bench: SpeedFigures) -> Any:
    """Errors over what is expected of their kind, large ones drawn in."""
    expected = np.array([_EXPECTED[quantity] for quantity in bench.quantity])
    errors = np.log(np.maximum(predicted, 1e-12) / bench.measured)
    inside = np.sqrt(2.0 * (np.sqrt(1.0 + (errors / _HUBER) ** 2) - 1.0)) * _HUBER
    return np.sign(errors) * inside * bench.trust / expected
