"""Runs from the logs of trainers and engines: the figures that `diagnose` reads in them."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from trilemma.diagnosis.findings import Part
from trilemma.diagnosis.reading import read
from trilemma.errors import InputError, shorten
from trilemma.runs.run import LedgerRun

#: Kinds of records that are of a run, those that say most of it first.
KINDS = ("training-log", "serving-load", "engine-log")


def imported(
    path: str, *, name: str | None = None, model: str = "", gpu: str = "", gpus: int | None = None
) -> LedgerRun:
    """The run that a log is of. Its time is that of the file. Raises `InputError` for a file that holds no figures of a run."""
    reading = read(path)
    if reading.unreadable:
        raise InputError(f"{shorten(path)}: {reading.why}")
    parts = sorted((part for part in reading.parts if part.kind in KINDS), key=lambda part: KINDS.index(part.kind))
    figures: dict[str, float] = {}
    told: dict[str, Any] = {}
    for part in parts:
        for key, value in _facts(part).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                told.setdefault(key, value)
            elif math.isfinite(value):
                figures.setdefault(key, float(value))
    if not figures:
        raise InputError(
            f"{shorten(path)} holds no figures of a run (it is read as {reading.kind}); give a trainer's or engine's log"
        )
    ended = os.stat(path).st_mtime if path != "-" else 0.0
    return LedgerRun(
        name=name or Path(path).stem[:100] or "imported", started_s=ended, ended_s=ended, gpu=gpu, gpus=gpus, figures=figures,
        model=model or str(told.get("model", ""))[:200], config={key: value for key, value in told.items() if key != "model"},
        tags=("imported", parts[0].kind), why=f"imported from {Path(path).name[:200]}",
    )  # fmt: skip


def _facts(part: Part) -> dict[str, Any]:
    """Facts of one part with names that a figure may have."""
    return {
        key.replace(" ", "_"): value for key, value in part.facts.items() if not isinstance(value, dict | list | tuple)
    }
