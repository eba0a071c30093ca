"""Coefficients of one kernel from its rows: one fit for all, finer ones for implementations and head widths with enough rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trilemma.hardware import find
from trilemma.measured.bounded_fit import fit_log_ratio
from trilemma.measured.kernels.models import blank, model_of
from trilemma.measured.kernels.tables import KernelRows
from trilemma.quantities import Array
from trilemma.timing.kernels.collectives import RANKS, parameters_for
from trilemma.timing.kernels.fitted import Parameter
from trilemma.timing.kernels.formulas import COLLECTIVES, parameters_of
from trilemma.timing.kernels.gemm_tiles import tile_rules

#: A part with fewer rows keeps the numbers of the whole that it belongs to.
FEWEST_ROWS = 40
#: A fit looks at so many rows at most, drawn by seed; more change nothing but the time.
_MOST_ROWS = 800
_SEED = 20261129
#: How often alternatives are gone through, each in the light of the others.
_PASSES = 2
#: Numbers that a part takes over from its implementation: few of its rows tell anything about them.
_INHERITED = ("widest_group", "head_us")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Coefficients and the rows that they are for: any where ``source`` is "" or ``head_dim`` and ``windowed`` are None."""

    values: Mapping[str, float]
    rows: int
    source: str = ""
    head_dim: int | None = None
    windowed: bool | None = None

    def covers(self, rows: KernelRows) -> Any:
        """Mask of the rows that this fit is for."""
        mask = np.full(len(rows.seconds), True)
        if self.source:
            mask &= rows.sources == self.source
        if self.head_dim is not None:
            mask &= rows.shapes["head_dim"] == self.head_dim
        if self.windowed is not None:
            mask &= (rows.shapes["window"] > 0) == self.windowed
        return mask


def fit_kernel(rows: KernelRows) -> list[Fit]:
    """Fits of one group, the general one first, then those of its parts."""
    if rows.kernel in COLLECTIVES:
        return [Fit(values=_collective(rows), rows=len(rows.seconds))]
    whole = _fit(rows, parameters_of(rows.kernel), None)
    fits = [Fit(values=whole, rows=len(rows.seconds))]
    for source in sorted(set(rows.sources.tolist())):
        mine = rows.part(rows.sources == source)
        if len(mine.seconds) < FEWEST_ROWS:
            continue
        alone = len(mine.seconds) == len(rows.seconds)
        values = whole if alone else _fit(mine, parameters_of(rows.kernel), whole)
        fits.append(Fit(values=values, rows=len(mine.seconds), source=source))
        fits += _by_heads(mine, source, values)
    return fits


def predict(fits: Sequence[Fit], rows: KernelRows) -> Array:
    """Seconds of ``rows``, each by the finest fit that is for it."""
    seconds = np.full(len(rows.seconds), np.nan)
    for fit in fits:
        mask = fit.covers(rows)
        if mask.any():
            part = rows.part(mask)
            seconds[mask] = model_of(rows.kernel).seconds(blank(part, fit.values), part)
    return seconds


def hold_out(rows: KernelRows, *, share: float = 0.3) -> Iterator[Any]:
    """Masks of rows to leave out, whole shapes together, by seed: a share of them once, or every one in turn.

    Mixtures come in few shapes, so each is left out once, in three parts; of other kernels three tenths are left out.
    """
    unit = np.stack([rows.shapes[name] for name in model_of(rows.kernel).unit], axis=1)
    shapes, which = np.unique(unit, axis=0, return_inverse=True)
    order = np.random.default_rng(_SEED).permutation(len(shapes))
    place = np.empty(len(shapes), dtype=int)
    place[order] = np.arange(len(shapes))
    placed = place[np.asarray(which).reshape(-1)]
    if rows.kernel == "experts":
        yield from (placed % 3 == part for part in range(3))
    else:
        yield placed < max(1, round(share * len(shapes)))


def held_out_ratio(rows: KernelRows) -> tuple[Any, Array]:
    """Predicted over measured of rows whose shapes the fit did not see, and the mask of those rows."""
    ratio = np.full(len(rows.seconds), np.nan)
    for left_out in hold_out(rows):
        if left_out.any() and (~left_out).sum() >= FEWEST_ROWS // 2:
            fits = fit_kernel(rows.part(~left_out))
            test = rows.part(left_out)
            ratio[left_out] = predict(fits, test) / test.seconds
    judged = np.isfinite(ratio)
    return judged, ratio[judged]


def _by_heads(rows: KernelRows, source: str, values: Mapping[str, float]) -> Iterator[Fit]:
    """One fit for each width of heads, with and without a window: implementations differ by both."""
    if "head_dim" not in rows.shapes:
        return
    kept = tuple(
        replace(p, choices=(values[p.name],)) if (p.choices or p.name in _INHERITED) and p.name in values else p
        for p in parameters_of(rows.kernel)
    )
    for head_dim, windowed in itertools.product(np.unique(rows.shapes["head_dim"]), (False, True)):
        fit = Fit(values=values, rows=0, source=source, head_dim=int(head_dim), windowed=windowed)
        mine = rows.part(fit.covers(rows))
        if len(mine.seconds) >= FEWEST_ROWS:
            yield replace(fit, values=_fit(mine, kept, values), rows=len(mine.seconds))


def _collective(rows: KernelRows) -> dict[str, float]:
    values: dict[str, float] = {}
    for ranks in RANKS:
        mine = rows.part(rows.shapes["ranks"] == ranks)
        if len(mine.seconds) >= 8:
            values |= _fit(mine, parameters_for(ranks), None)
    return values


def _fit(rows: KernelRows, parameters: Sequence[Parameter], above: Mapping[str, float] | None) -> dict[str, float]:
    """Values for ``rows``, from the starts of the parameters or from the values ``above``, those of the whole.

    Numbers that count alternatives are tried one after another, in the order of the parameters, each kept where it does
    better: what most rows tell apart comes first, and what none tells keeps its start. A second pass sees the others' values.
    """
    if len(rows.seconds) > _MOST_ROWS:
        chosen = np.random.default_rng(_SEED).choice(len(rows.seconds), _MOST_ROWS, replace=False)
        rows = rows.part(np.sort(chosen))
    smooth = [p for p in parameters if not p.choices and (p.required or rows.kernel in COLLECTIVES)]
    counted = [p for p in parameters if p.choices]
    start = {p.name: above[p.name] if above is not None and p.name in above else p.start for p in parameters}
    picked = {p.name: start[p.name] for p in counted}
    best, cost = _smooth_fit(rows, smooth, start, picked)
    for _ in range(_PASSES if counted else 0):
        before = dict(picked)
        for parameter in counted:
            for choice in _choices(parameter, rows):
                if choice != picked[parameter.name]:
                    values, tried = _smooth_fit(rows, smooth, start, {**picked, parameter.name: choice})
                    if tried < cost:
                        best, cost = values, tried
            picked[parameter.name] = best[parameter.name]
        if picked == before:
            break
    return best


def _choices(parameter: Parameter, rows: KernelRows) -> tuple[float, ...]:
    """The alternatives of ``parameter`` that the card of ``rows`` can have."""
    if parameter.name != "tile_rule":
        return parameter.choices
    capability, rules = find(rows.accelerator).compute_capability, tile_rules()
    return tuple(choice for choice in parameter.choices if rules[int(choice)].exists(capability, rows.dtype))


def _smooth_fit(
    rows: KernelRows,
    smooth: Sequence[Parameter],
    start: Mapping[str, float],
    picked: Mapping[str, float],
) -> tuple[dict[str, float], float]:
    model, base, names = model_of(rows.kernel), blank(rows, {}), [p.name for p in smooth]

    def seconds(values: Array) -> Array:
        named = {**picked, **dict(zip(names, values.tolist(), strict=True))}
        return np.asarray(model.seconds(replace(base, values=named), rows), dtype=float)

    values, cost = fit_log_ratio(
        seconds,
        rows.seconds,
        start=np.array([start[name] for name in names]),
        low=np.array([p.low for p in smooth]),
        high=np.array([p.high for p in smooth]),
    )
    return {**picked, **dict(zip(names, values.tolist(), strict=True))}, cost
