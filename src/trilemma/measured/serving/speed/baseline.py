"""What a look-up scores: the same table interpolated over concurrency, without any physics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.quantities import Array


def interpolated(questions: Sequence[SpeedQuestion | str], allowed: Sequence[Any] | None = None) -> Array:
    """(rows,) each figure from other rows that differ in concurrency only: log-log between the nearest load on either side.

    Rows at the same load, which only repeat the figure, take no part. nan where a side has no neighbour. ``allowed`` gives
    each row a group (None: no groups) whose rows it must not look at.
    """
    series: dict[Any, list[int]] = {}
    for at, question in enumerate(questions):
        if isinstance(question, SpeedQuestion) and question.rate is None and np.isfinite(question.concurrency):
            layout = question.layout
            key = (
                question.model.name, question.precision, question.accelerator.id, question.engine, question.metric,
                layout.tp, layout.pp, layout.dp, layout.ep, question.pools, question.isl, question.osl,
            )  # fmt: skip
            series.setdefault(key, []).append(at)
    found = np.full(len(questions), np.nan)
    for members in series.values():
        rows = [questions[at] for at in members]
        load = np.log([row.concurrency for row in rows if isinstance(row, SpeedQuestion)])
        value = np.log([row.measured for row in rows if isinstance(row, SpeedQuestion)])
        for own, at in enumerate(members):
            seen = np.array([allowed is None or allowed[other] != allowed[at] for other in members])
            below, above = seen & (load < load[own]), seen & (load > load[own])
            if np.any(below) and np.any(above):
                left, right = load[below].max(), load[above].min()
                ends = [np.median(value[seen & (load == end)]) for end in (left, right)]
                found[at] = np.exp(np.interp(load[own], [left, right], ends))
    return found
