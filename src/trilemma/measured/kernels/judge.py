"""Kernel tables: measured operator latencies against the shipped coefficients, each row by the rung that it stands on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trilemma.errors import InputError
from trilemma.hardware import find
from trilemma.measured.judgement import FigureComparison, Judgement
from trilemma.measured.kernels.columns import Columns
from trilemma.measured.kernels.models import model_of
from trilemma.measured.kernels.tables import KernelRows, KernelTables, rows_of
from trilemma.measured.tables import Row
from trilemma.timing.kernels.formulas import PARAMETERS
from trilemma.timing.kernels.ladder import Rung, kernel_coefficients

__all__ = ["METRICS", "judge"]

#: One metric a kernel, in microseconds.
METRICS = tuple(f"{kernel}_us" for kernel in PARAMETERS)
_MICRO = 1e6


def judge(
    rows: Sequence[Row],
    *,
    models_dir: str | Path | None = None,  # noqa: ARG001 - kernels know no model; the signature is that of all kinds
    holdout: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Judgement], dict[str, Any]]:
    """Judge every row; rows of tables that are not believed are left out with the reason.

    Raises `InputError` with ``holdout``: what kernels are worth on shapes left out is the report of ``calibrate kernels``.
    """
    if holdout:
        raise InputError("kernel tables are held out by shape, not by column: run trilemma calibrate kernels TABLE…")
    tables = KernelTables()
    judged: dict[int, Judgement] = {}
    for group in rows_of(_columns(rows), tables):
        for part in _parts(group):
            judged |= _judge_part(part, rows)
            if progress is not None:
                progress(len(judged))
    return [judged.get(at) or _skipped(row, tables.left_out_at.get(at, "")) for at, row in enumerate(rows)], {}


def _columns(rows: Sequence[Row]) -> Columns:
    names = sorted({name for row in rows for name in row.cells})
    texts = {name: np.array([row.text(name) for row in rows]) for name in names}
    numbers = {name: np.array([_number(text) for text in texts[name].tolist()]) for name in names}
    return Columns(name="the table", texts=texts, numbers=numbers, rows=len(rows))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _parts(group: KernelRows) -> list[KernelRows]:
    """Rows that ask for the same coefficients: one implementation, one width of heads, with a window or without."""
    keys = [group.sources]
    if "head_dim" in group.shapes:
        keys += [group.shapes["head_dim"].astype(str), (group.shapes["window"] > 0).astype(str)]
    _, which = np.unique(np.stack([np.asarray(key, dtype=str) for key in keys]), axis=1, return_inverse=True)
    which = np.asarray(which).reshape(-1)
    return [group.part(which == one) for one in range(int(which.max()) + 1)]


def _judge_part(part: KernelRows, rows: Sequence[Row]) -> dict[int, Judgement]:
    widths = part.shapes.get("head_dim")
    windows = part.shapes.get("window")
    coefficients, rung = kernel_coefficients(
        find(part.accelerator),
        part.engine,
        part.kernel,
        part.dtype,
        head_dim=None if widths is None else int(widths[0]),
        windowed=windows is not None and bool(windows[0] > 0),
        source=str(part.sources[0]),
    )
    seconds = np.broadcast_to(model_of(part.kernel).seconds(coefficients, part), part.seconds.shape)
    classes = {
        "kernel": part.kernel,
        "accelerator": part.accelerator,
        "engine": part.engine,
        "format": f"{part.kernel} {part.dtype}",
        "group": f"{part.kernel} {part.dtype} {part.accelerator} {part.engine}",
        "rung": rung.name,
    }
    predicted, measured = (seconds * _MICRO).tolist(), (part.seconds * _MICRO).tolist()
    return {
        at: Judgement(
            row_id=rows[at].id,
            cells=rows[at].cells,
            classes=classes,
            comparisons=(_comparison(part.kernel, predicted[i], measured[i], rung),),
            config=f"{classes['group']} {i}",
            assumed=(str(rung),),
        )
        for i, at in enumerate(part.at.tolist())
    }


def _comparison(kernel: str, predicted: float, measured: float, rung: Rung) -> FigureComparison:
    return FigureComparison(
        metric=f"{kernel}_us",
        predicted=predicted,
        measured=measured,
        low=predicted * rung.low,
        high=predicted * rung.high,
    )


def _skipped(row: Row, why: str) -> Judgement:
    return Judgement(row_id=row.id, cells=row.cells, skipped=why or "not read")
