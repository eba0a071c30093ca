"""Power-cap tables: the speed that is kept at each cap, or at each locked clock, as measured against what the law of clocks says.

Rows of one load on one card are a curve; its speed without a cap is that of the rows whose draw stays below their cap, or of the
highest cap. What a row measures is its speed over that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.measured.judgement import FigureComparison, Judgement
from trilemma.measured.serving.energy.activities import columns_of_rows, parts_of_rows
from trilemma.measured.serving.energy.fit import PowerRows
from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.question import SpeedQuestion
from trilemma.measured.serving.speed.refit import read_questions
from trilemma.measured.tables import Row, UnusableRow
from trilemma.models.quantized import find_scheme
from trilemma.timing import serving_terms
from trilemma.timing.clocks import clock_law, clock_under_cap, clocked_share, kept_speed
from trilemma.timing.power import activity_of_columns, power_terms
from trilemma.timing.serving_terms import chips_of

KEPT, AT_CLOCK = "speed_kept", "speed_at_clock"
METRICS: tuple[str, ...] = (KEPT, AT_CLOCK)
GROUPS: tuple[str, ...] = ()
CLASSES: tuple[str, ...] = ("gpu", "phase")
#: A draw below this share of its cap is not held by it.
_FREE = 0.985
#: Lengths of a load of which the table tells neither: a short chat.
_ISL, _OSL = "256", "512"
_RATES = {"prefill": "prefill_tok_s", "decode": "decode_tok_s"}
Curve = tuple[str, ...]


def judge(
    rows: Sequence[Row],
    *,
    models_dir: str | Path | None = None,
    holdout: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,  # noqa: ARG001 - every table's judge takes it
) -> tuple[list[Judgement], dict[str, Any]]:
    """Judge every row; a row never ends the run. The law is not fitted to parts of a table."""
    if holdout:
        raise InputError("the law of clocks is not fitted again with parts left out; judge without --holdout")
    questions = read_questions([_as_speed_row(row) for row in rows], None if models_dir is None else str(models_dir))
    benches, terms = benches_of(questions), serving_terms.shipped()
    columns, parts = columns_of_rows(benches, terms, len(rows)), parts_of_rows(benches, terms, len(rows))
    free = _without_cap(rows)
    found = []
    for at, (row, question) in enumerate(zip(rows, questions, strict=True)):
        try:
            if isinstance(question, str):
                raise UnusableRow(question)
            found.append(_judged(row, question, columns[at], parts[at], free))
        except UnusableRow as error:
            found.append(Judgement(row_id=row.id, cells=row.cells, skipped=str(error)))
    return found, {}


def without_cap(rows: Sequence[Row], *, models_dir: str | Path | None = None) -> PowerRows | None:
    """The load of each curve where no cap holds it, or at its highest cap, as a row of power at our own rate: a board that was
    let draw more than its limit counts as drawing all of it. None where there are none."""
    questions = read_questions([_as_speed_row(row) for row in rows], None if models_dir is None else str(models_dir))
    columns = columns_of_rows(benches_of(questions), serving_terms.shipped(), len(rows))
    highest: dict[Curve, float] = {}
    for row in rows:
        highest[_curve(row)] = max(highest.get(_curve(row), 0.0), _figure(row, "cap_w") or 0.0)
    loads: dict[Curve, list[tuple[int, float]]] = {}
    for at, (row, question) in enumerate(zip(rows, questions, strict=True)):
        cap, watts = _figure(row, "cap_w"), _figure(row, "power_w")
        if isinstance(question, str) or cap is None or watts is None or question.accelerator.tdp_w is None:
            continue
        if (watts < _FREE * cap or cap == highest[_curve(row)]) and np.isfinite(columns[at]).all():
            loads.setdefault(_curve(row), []).append((at, min(watts / question.accelerator.tdp_w.value, 1.0)))
    if not loads:
        return None
    kept = [told[0][0] for told in loads.values()]
    found = [question for at in kept if isinstance(question := questions[at], SpeedQuestion)]
    return PowerRows(
        columns=columns[kept], shares=np.array([median(share for _, share in told) for told in loads.values()]),
        chips=tuple(chips_of(one.accelerator) for one in found), models=tuple(one.model.name for one in found),
    )  # fmt: skip


def _as_speed_row(row: Row) -> Row:
    """``row`` as one of serving speed: its load, and the first word of its weights that names a way to store them."""
    phase = row.text("phase").lower()
    cells = {
        "gpus": "1", "tp": "1", "precision_weights": _stored(row.text("quant")), "metric": _RATES.get(phase, ""),
        "isl": row.text("prompt_tokens") or _ISL, "osl": "0" if phase == "prefill" else _OSL,
        "concurrency_or_batch": row.text("concurrency") or "1", "value": row.text("tok_s"),
    }  # fmt: skip
    return replace(
        row, cells={**cells, **{name: text for name, text in row.cells.items() if text}, "isl": cells["isl"]}
    )


def _stored(words: str) -> str:
    for word in words.replace("UD-", "").split():
        try:
            find_scheme(word.lower())
        except InputError:
            continue
        return word
    return words


def _curve(row: Row) -> Curve:
    return tuple(row.text(name) for name in ("gpu", "rig", "model", "engine", "phase", "concurrency", "mem_clock_mhz"))


def _figure(row: Row, column: str) -> float | None:
    return row.number(column, low=1e-6, high=1e9)


def _without_cap(rows: Sequence[Row]) -> dict[Curve, tuple[float, float]]:
    """Of each curve the speed without a cap, and the highest clock that a row of it was locked to (0: none was)."""
    curves: dict[Curve, list[tuple[float, float, bool, float]]] = {}
    for row in rows:
        try:
            cap, watts, speed = (_figure(row, name) for name in ("cap_w", "power_w", "tok_s"))
            clock = _figure(row, "sm_clock_mhz") if cap is None else None
        except UnusableRow:
            continue
        if speed is not None and (cap is not None or clock is not None):
            held = cap is not None and (watts is None or watts >= _FREE * cap)
            curves.setdefault(_curve(row), []).append((cap or clock or 0.0, speed, held, clock or 0.0))
    found = {}
    for curve, told in curves.items():
        free = [speed for _, speed, held, _ in told if not held and curve[-1] == ""]
        highest = max(told)
        found[curve] = (median(free) if free else highest[1], highest[3])
    return found


def _judged(
    row: Row, question: SpeedQuestion, columns: Any, parts: Any, free: dict[Curve, tuple[float, float]]
) -> Judgement:
    speed, cap, clock = (_figure(row, name) for name in ("tok_s", "cap_w", "sm_clock_mhz"))
    card = question.accelerator
    if speed is None or _curve(row) not in free:
        raise UnusableRow("states neither a cap nor a clock")
    if not np.isfinite(columns).all() or card.tdp_w is None:
        raise UnusableRow(f"what {card.id} does under this load is not known")
    whole, highest = free[_curve(row)]
    law, terms = clock_law(card), power_terms(card)
    clocked = clocked_share(parts, law)
    if cap is not None:
        metric, at = (
            KEPT,
            float(clock_under_cap(cap / card.tdp_w.value, activity_of_columns(columns), terms, law, clocked)),
        )
    elif clock is not None and highest and row.text("mem_clock_mhz") == _fastest(free, _curve(row)):
        metric, at = AT_CLOCK, clock / highest
    else:
        raise UnusableRow("memory clocks below the card's own are not modelled")
    kept = float(kept_speed(at, clocked))
    half = law.half * (1 - kept) / max(1 - _EASY, 1e-9) if kept > _EASY else law.half
    low, high = kept * float(np.exp(-max(half, _LEAST))), min(kept * float(np.exp(max(half, _LEAST))), 1.0 + _LEAST)
    return Judgement(
        row_id=row.id,
        cells=row.cells,
        classes={"gpu": card.id, "phase": row.text("phase")},
        comparisons=(
            FigureComparison(metric=metric, predicted=kept, measured=speed / whole, low=low, high=max(high, kept)),
        ),
        config=repr(_curve(row)),
        assumed=question.assumed,
    )


#: Speeds kept above this are off by less, in proportion, and by no less than runs differ among themselves.
_EASY, _LEAST = 0.8, 0.03


def _fastest(free: dict[Curve, tuple[float, float]], curve: Curve) -> str:
    alike = [other[-1] for other in free if other[:-1] == curve[:-1] and other[-1]]
    return max(alike, key=float, default="")
