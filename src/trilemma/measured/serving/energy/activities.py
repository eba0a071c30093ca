"""What the cards of measured rows did, as timing tells it: the activity of a rank at our own rate of each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trilemma.measured.serving.speed.figures import SpeedFigures, kinds_of, load_speed, phase_pass, under
from trilemma.quantities import Array
from trilemma.timing.clocks import clocked_parts
from trilemma.timing.power import POWER_TERMS, pass_activity, power_columns, serving_activity
from trilemma.timing.serving_terms import ServingTerms


def columns_of_rows(benches: Sequence[SpeedFigures], terms: ServingTerms, rows: int) -> Array:
    """(rows, power terms) what each of `POWER_TERMS` multiplies at our own rate of the row; nan where no bench holds it."""
    found = np.full((rows, len(POWER_TERMS)), np.nan)
    for bench in benches:
        factors = terms.factors(bench.engine, bench.machine.accelerator, bench.precision)
        kinds = kinds_of(bench)
        for quantity, kind in dict.fromkeys(zip(bench.quantity.tolist(), kinds.tolist(), strict=True)):
            part = bench.take((bench.quantity == quantity) & (kinds == kind))
            machine = under(part, factors)
            if quantity in ("decode", "prefill"):
                activity = pass_activity(phase_pass(part, machine, quantity), machine, part.work)
            else:
                activity = serving_activity(load_speed(part, machine), machine, part.work, part.layout)
            told = power_columns(activity)
            for at, name in enumerate(POWER_TERMS):
                found[part.at, at] = told[name]
    return found


def parts_of_rows(benches: Sequence[SpeedFigures], terms: ServingTerms, rows: int) -> list[dict[str, float]]:
    """Of rows of one phase the shares of a pass that launches, waiting for memory and arithmetic take; empty for the others."""
    found: list[dict[str, float]] = [{} for _ in range(rows)]
    for bench in benches:
        factors = terms.factors(bench.engine, bench.machine.accelerator, bench.precision)
        for phase in ("decode", "prefill"):
            if not np.any(bench.quantity == phase):
                continue
            part = bench.take(bench.quantity == phase)
            parts = clocked_parts(phase_pass(part, under(part, factors), phase))
            for at, row in enumerate(part.at):
                found[row] = {name: float(np.broadcast_to(share, len(part.at))[at]) for name, share in parts.items()}
    return found


def at_rate(columns: Array, share: Array) -> Array:
    """``columns`` where the same work went on at ``share`` of our rate; more than all of it is no more work than was counted."""
    slower = np.minimum(share, 1.0)[:, None]
    works = np.array([name in ("compute", "memory") for name in POWER_TERMS])
    return np.asarray(np.where(works, columns * slower, columns))
