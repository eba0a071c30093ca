"""Error bars of serving speed from what predictions were off by, class by class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trilemma.quantities import Array
from trilemma.timing.serving_terms import Spread

#: A class with fewer figures than this borrows the bounds of the wider class.
FEWEST = 25
#: A class of this many figures and more is believed without widening.
_MANY = 60
_LOW, _HIGH = 0.05, 0.95
#: Bounds of deployments that were not measured are widened by this power: deployments differ from one another by more than
#: the rows of one do, and there are few of them.
_ELSEWHERE = 1.15
#: How finely deployments that were not measured are told apart (family, engine, precision). Only time per token follows the
#: engine from card to card; for the rest the family must do.
_DEPTH_ELSEWHERE = {"tpot": 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """One figure: measured over predicted, and the class of its deployment."""

    figure: str
    family: str
    engine: str
    precision: str
    ratio: float


def spreads_of(residuals: Iterable[Residual], *, measured: bool) -> tuple[Spread, ...]:
    """Bounds that hold nine of ten residuals of a class, from the finest classes that have enough of them to the widest.

    Bounds of small classes are widened by a tenth: their quantiles are not settled. Those of deployments that were not
    ``measured`` are coarser and wider.
    """
    rows = list(residuals)
    found = []
    for figure in sorted({row.figure for row in rows}):
        of_figure = [row for row in rows if row.figure == figure]
        finest = 3 if measured else _DEPTH_ELSEWHERE.get(figure, 1)
        for depth in range(finest, -1, -1):
            classes: dict[tuple[str, ...], list[float]] = {}
            for row in of_figure:
                names = (row.family, row.engine, row.precision)[:depth]
                classes.setdefault((*names, *("",) * (3 - depth)), []).append(row.ratio)
            for names, ratios in sorted(classes.items()):
                if len(ratios) >= FEWEST or depth == 0:
                    found.append(_spread(figure, names, ratios, measured=measured))
    return tuple(found)


def _spread(figure: str, names: tuple[str, ...], ratios: Sequence[float], *, measured: bool) -> Spread:
    low, high = _bounds(np.asarray(ratios))
    wider = (1.1 if len(ratios) < _MANY else 1.0) * (1.0 if measured else _ELSEWHERE)
    return Spread(
        figure=figure, family=names[0], engine=names[1], precision=names[2], measured=measured,
        low=float(min(low ** wider, 0.98)), high=float(max(high ** wider, 1.02)), rows=len(ratios),
    )  # fmt: skip


def _bounds(ratios: Array) -> tuple[float, float]:
    low, high = np.quantile(ratios, (_LOW, _HIGH))
    return float(low), float(high)
