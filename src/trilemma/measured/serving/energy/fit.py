"""Shares of a board's limit fitted to measured watts: what all chips share, then those of each kind of chips, held by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.data.files import table_text
from trilemma.quantities import Array
from trilemma.timing.power import POWER_TERMS, PowerTerms

#: What all chips share counts as so many rows of a kind of chips.
_PRIOR_ROWS = 4.0
#: The same of chips of which curves of power caps alone tell, a load each; a part counts as at least so much of their rows.
_PRIOR_OF_CAPS, _LEAST_PART = 0.5, 0.3
#: Errors beyond this share of a row count less than their square, and rounds in which those weights settle.
_SOFT, _ROUNDS = 0.2, 5
#: A kind of chips has bounds of its own from so many rows of so many models on.
_OWN_ROWS, _OWN_MODELS = 40, 5
_COVERED = 0.9
_ABOUT = (
    "Shares of a board's limit (timing/power.py) by chips; half: logarithm within which nine of ten unseen rows are."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerRows:
    """Measured rows: ``columns`` (rows, power terms) at the measured rate, ``shares`` of the board's limit (rows,), and the chips
    and the model of each."""

    columns: Array
    shares: Array
    chips: tuple[str, ...]
    models: tuple[str, ...]

    def take(self, chosen: Array) -> PowerRows:
        """The rows of a mask."""
        at = np.flatnonzero(chosen)
        return PowerRows(
            columns=self.columns[at], shares=self.shares[at], chips=tuple(self.chips[i] for i in at),
            models=tuple(self.models[i] for i in at),
        )  # fmt: skip

    def of(self, chips: str) -> Any:
        """A mask of the rows of ``chips``."""
        return np.array([one == chips for one in self.chips], dtype=bool)


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedPower:
    """The terms that all chips share and those of each kind, with the rows and models behind them."""

    shared: PowerTerms
    chips: dict[str, PowerTerms]
    counts: dict[str, tuple[int, int]]

    def told(self, chips: str) -> PowerTerms:
        return self.chips.get(chips, self.shared)


def fit_power(rows: PowerRows, others: PowerRows | None = None, caps: PowerRows | None = None) -> FittedPower:
    """The terms of ``rows``, and by how much nine of ten rows of models left out in turn lie off. ``others`` are not fitted, but
    bounds of chips that nobody measured are to hold them too, each kind of chips weighing the same. ``caps`` are loads of few
    models on chips of their own: their terms are held by what the others share, their bounds are those of chips not measured."""
    shared, by_chips = _coefficients(rows)
    residuals = {chips: np.abs(_residuals(rows, chips)) for chips in by_chips}
    foreign = [np.abs(_of_others(rows, chips)) for chips in by_chips]
    if others is not None:
        told = np.minimum(others.columns @ shared, 1.0)
        foreign += [np.abs(np.log(others.shares / told))[others.of(chips)] for chips in dict.fromkeys(others.chips)]
    everyone = _widest(foreign)
    counts, chips_terms = {}, {}
    for chips, shares in by_chips.items():
        models = {model for model, one in zip(rows.models, rows.chips, strict=True) if one == chips}
        counts[chips] = (int(rows.of(chips).sum()), len(models))
        own = counts[chips][0] >= _OWN_ROWS and counts[chips][1] >= _OWN_MODELS
        half = float(np.quantile(residuals[chips], _COVERED)) if own else everyone
        chips_terms[chips] = PowerTerms(shares=_named(shares), half=half, chips=chips)
    for chips in dict.fromkeys(caps.chips) if caps is not None else ():
        assert caps is not None
        own_rows = caps.take(caps.of(chips))
        counts[chips] = (len(own_rows.shares), len(set(own_rows.models)))
        chips_terms[chips] = PowerTerms(
            shares=_named(_of_chips(own_rows, shared, _PRIOR_OF_CAPS)), half=everyone, chips=chips
        )
    return FittedPower(shared=PowerTerms(shares=_named(shared), half=everyone), chips=chips_terms, counts=counts)


def _widest(kinds: list[Array]) -> float:
    """What nine of ten errors lie within where each of ``kinds`` weighs the same."""
    errors = np.concatenate(kinds)
    weights = np.concatenate([np.full(len(kind), 1.0 / len(kind)) for kind in kinds])
    order = np.argsort(errors)
    at = int(np.searchsorted(np.cumsum(weights[order]), _COVERED * len(kinds)))
    return float(errors[order][min(at, len(errors) - 1)])


def power_text(fitted: FittedPower, *, source: str, as_of: str) -> str:
    """``fitted`` as the data file that `trilemma.timing.power` reads."""

    def row(terms: PowerTerms) -> dict[str, Any]:
        return {"shares": {name: round(share, 4) for name, share in terms.shares.items()}, "half": round(terms.half, 4)}

    counted = {chips: {"rows": rows, "models": models} for chips, (rows, models) in fitted.counts.items()}
    return table_text(
        {
            "about": _ABOUT, "schema": 1, "as_of": as_of, "source": source, "made_by": "trilemma calibrate power",
            "shared": row(fitted.shared),
            "chips": {chips: row(terms) | counted[chips] for chips, terms in sorted(fitted.chips.items())},
        }
    )  # fmt: skip


def predicted_shares(terms: PowerTerms, columns: Array) -> Array:
    """(rows,) shares of the limit, none above it."""
    return np.asarray(np.minimum(columns @ np.array([terms.shares[name] for name in POWER_TERMS]), 1.0))


def _coefficients(rows: PowerRows) -> tuple[Array, dict[str, Array]]:
    kinds = list(dict.fromkeys(rows.chips))
    weights = np.zeros(len(rows.shares))
    for chips in kinds:
        weights[rows.of(chips)] = 1.0 / rows.of(chips).sum()
    shared = _bounded(rows.columns, rows.shares, weights, np.zeros(len(POWER_TERMS)), 1e-3)
    return shared, {chips: _of_chips(rows.take(rows.of(chips)), shared) for chips in kinds}


def _of_chips(rows: PowerRows, shared: Array, prior_rows: float = _PRIOR_ROWS) -> Array:
    return _bounded(rows.columns, rows.shares, np.ones(len(rows.shares)), shared, prior_rows)


def _residuals(rows: PowerRows, chips: str) -> Array:
    """Logarithms of measured over predicted of the rows of ``chips``, each model left out of all fits in turn."""
    mine = rows.of(chips)
    found = np.zeros(int(mine.sum()))
    models = np.array([model for model, one in zip(rows.models, rows.chips, strict=True) if one == chips])
    own = rows.take(mine)
    for model in dict.fromkeys(models.tolist()):
        kept = np.array([one != model for one in rows.models])
        rest = rows.take(kept)
        out = models == model
        if not np.any(rest.of(chips)):
            found[out] = np.log(own.shares[out] / _shares_by_others(rows, chips, own.take(out).columns))
            continue
        by_chips = _coefficients(rest)[1]
        found[out] = np.log(own.shares[out] / np.minimum(own.columns[out] @ by_chips[chips], 1.0))
    return found


def _of_others(rows: PowerRows, chips: str) -> Array:
    """Logarithms of measured over predicted of ``chips`` by what the other kinds share."""
    own = rows.take(rows.of(chips))
    return np.asarray(np.log(own.shares / _shares_by_others(rows, chips, own.columns)))


def _shares_by_others(rows: PowerRows, chips: str, columns: Array) -> Array:
    rest = rows.take(~rows.of(chips))
    shared = _coefficients(rest if len(rest.shares) else rows)[0]
    return np.minimum(columns @ shared, 1.0)


def _bounded(
    columns: Array, shares: Array, weights: Array, prior: Array, prior_rows: float, least: float = _LEAST_PART
) -> Array:
    """Terms of at least nothing that tell ``shares`` best by relative error, large ones counting less than their square
    (iteratively reweighted), ``prior`` weighing ``prior_rows``."""
    relative = columns / shares[:, None]
    # a part that hardly any of these rows has is held as firmly as if they had it: its share would take any value
    sizes = np.maximum(np.sqrt((weights[:, None] * relative**2).sum(axis=0) / weights.sum()), least)
    hold = prior_rows * weights.mean() * sizes**2
    found, trust = np.array(prior, dtype=float), weights
    for _ in range(_ROUNDS):
        gram = (relative.T * trust) @ relative + np.diag(hold)
        found = _at_least_nothing(gram, relative.T @ trust + hold * prior)
        errors = relative @ found - 1.0
        trust = weights / np.sqrt(1.0 + (errors / _SOFT) ** 2)
    return found


def _at_least_nothing(gram: Array, wanted: Array) -> Array:
    """Least squares of terms that are not below zero: those that would be are left out, one after another (Lawson and
    Hanson 1974, from above)."""
    free = np.ones(len(wanted), dtype=bool)
    while True:
        found = np.zeros(len(wanted))
        at = np.flatnonzero(free)
        found[at] = np.linalg.solve(gram[np.ix_(at, at)], wanted[at])
        if np.all(found >= 0):
            return found
        free[int(np.argmin(found))] = False


def _named(shares: Array) -> dict[str, float]:
    return dict(zip(POWER_TERMS, (float(one) for one in shares), strict=True))
