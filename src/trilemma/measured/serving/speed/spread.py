"""Error bars of serving speed from rows that fits never saw, by how far they lay from what was fitted.

Rows of one block (a model on a deployment, all that a fit left out) are off together: what counts is how far blocks are off. So
each block weighs the same (after hierarchical conformal prediction: Dunn, Wasserman and Ramdas 2022, Journal of the ASA), and
where nine of ten rows lie farther out, since large blocks do, bounds hold these: by Student's law for as many blocks, since a
large block to come may lie farther out than those that are known. What sets publishers apart stands beside (`elsewhere`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trilemma.intervals import NINETY, student_t_95
from trilemma.timing.distance import DISTANCES
from trilemma.timing.serving_terms import Spread

#: A class of fewer blocks than this borrows those of its neighbour farther away.
FEWEST_BLOCKS = 5
_INSIDE = 0.9
#: Bounds are not narrower than this (logarithm): two runs of one label differ by as much.
_LEAST = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """One figure: measured over predicted by a fit that did not see its ``block``, and the class of the row."""

    figure: str
    family: str
    distance: str
    block: Hashable
    ratio: float


def spreads_of(residuals: Iterable[Residual]) -> tuple[Spread, ...]:
    """Bounds of every class of figure, distance and family; of families that are few, of both together."""
    rows = list(residuals)
    found = []
    for figure in sorted({row.figure for row in rows}):
        for distance in DISTANCES:
            families = sorted({row.family for row in rows if row.figure == figure})
            for family in (*families, ""):
                chosen = _borrowing(rows, figure, distance, family)
                if len({row.block for row in chosen}) >= FEWEST_BLOCKS or (family == "" and chosen):
                    found.append(_spread(chosen, figure, distance, family))
    return tuple(found)


def _borrowing(rows: Sequence[Residual], figure: str, distance: str, family: str) -> list[Residual]:
    """Rows of a class, and where its blocks are few those of the next classes farther away, then nearer."""
    order = list(DISTANCES)
    at = order.index(distance)
    chosen: list[Residual] = []
    for other in (*order[at:], *reversed(order[:at])):
        chosen += [row for row in rows if row.figure == figure and row.distance == other and family in ("", row.family)]
        if len({row.block for row in chosen}) >= FEWEST_BLOCKS:
            break
    return chosen


def _spread(rows: Sequence[Residual], figure: str, distance: str, family: str) -> Spread:
    blocks: dict[Hashable, list[float]] = {}
    for row in rows:
        blocks.setdefault((row.distance, row.block), []).append(row.ratio)
    few = student_t_95(max(len(blocks) - 1, 1)) / NINETY
    half = max(half_width(list(blocks.values())), few * half_width([[row.ratio for row in rows]]))
    return Spread(figure=figure, family=family, distance=distance, half=half, blocks=len(blocks), rows=len(rows))


def half_width(blocks: Sequence[Sequence[float]], *, inside: float = _INSIDE) -> float:
    """The logarithm within which ``inside`` of the ratios of ``blocks`` lie, each block weighing the same: a quantile of
    ``|log|``, so of few blocks the largest."""
    sizes = np.concatenate([np.full(len(block), 1.0 / (len(block) * len(blocks))) for block in blocks])
    off = np.abs(np.log(np.concatenate([np.asarray(block, dtype=float) for block in blocks])))
    order = np.argsort(off)
    at = min(int(np.searchsorted(np.cumsum(sizes[order]), inside - 1e-9)), len(off) - 1)
    return max(float(off[order][at]), _LEAST)
