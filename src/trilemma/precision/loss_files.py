"""Loss curves from files of JSON lines, as training loops write them."""

from __future__ import annotations

import json
import math
from typing import Any

from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_bytes

MOST_BYTES = 256 * 2**20
MOST_LINES = 2_000_000
_MOST_LINE = 2**16
_STEPS = ("step", "iteration", "iter", "global_step")
_LOSSES = ("loss", "train_loss", "train/loss", "lm loss", "lm_loss")
_RUNS = ("seed", "run", "run_id")


def read_curves(path: str) -> list[dict[int, float]]:
    """Every run of a file, step → loss, in order of first appearance.

    A line is an object with a step (`step`, `iteration`, …), a loss (`loss`, `train_loss`, …; NaN and Infinity are read
    as such, null as NaN) and, where a file holds several runs, a `seed` or `run`. Without steps the lines are counted.
    Lines without a loss are passed over. Raises `InputError` for anything that is no such file.
    """
    runs: dict[str, dict[int, float]] = {}
    for number, line in enumerate(_lines(path), 1):
        record = _record(line, path, number)
        name = next((key for key in _LOSSES if key in record), None)
        if name is None:
            continue
        run = runs.setdefault(_run_of(record), {})
        run[_step_of(record, len(run), path, number)] = _loss_of(record[name], path, number)
    if not runs:
        raise InputError(f'{shorten(path)} holds no line with a loss; give lines such as {{"step": 1, "loss": 2.3}}')
    return list(runs.values())


def _lines(path: str) -> list[str]:
    lines = read_bytes(path, most_bytes=MOST_BYTES, give="keep one line per step").splitlines()
    if len(lines) > MOST_LINES:
        raise InputError(f"{shorten(path)} has more than {MOST_LINES:,} lines; keep one line per step")
    return [line.decode("utf-8", errors="replace") for line in lines if line.strip()]


def _record(line: str, path: str, number: int) -> dict[str, Any]:
    try:
        if len(line) > _MOST_LINE:
            raise ValueError
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{shorten(path)} line {number} is no JSON object: {shorten(line, most=40)!r}") from None
    if not isinstance(record, dict):
        raise InputError(f"{shorten(path)} line {number} is no JSON object: {shorten(line, most=40)!r}")
    return record


def _run_of(record: dict[str, Any]) -> str:
    return "/".join(shorten(str(record[key])) for key in _RUNS if key in record)


def _step_of(record: dict[str, Any], counted: int, path: str, number: int) -> int:
    name = next((key for key in _STEPS if key in record), None)
    if name is None:
        return counted
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 2**53:
        raise InputError(
            f"{shorten(path)} line {number}: {name} {shorten(str(value), most=40)!r} is no step; give a whole number"
        )
    return int(value)


def _loss_of(value: Any, path: str, number: int) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str) and value.strip().lower() in ("nan", "inf", "-inf", "infinity"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{shorten(path)} line {number}: loss {shorten(str(value), most=40)!r} is no number")
    try:
        return float(value)
    except OverflowError:
        return math.inf
