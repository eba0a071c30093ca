"""Runs for other tools: a table, and the latest figures in the text that Prometheus reads."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

from trilemma.errors import InputError
from trilemma.outside_files import written
from trilemma.report.runs import when
from trilemma.runs.run import LedgerRun

_HEAD = ("id", "name", "started_utc", "seconds", "status", "model", "gpu", "gpus", "git", "tags")
#: First characters with which a spreadsheet takes a cell for a formula (CWE-1236).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(runs: Sequence[LedgerRun]) -> str:
    """A row a run, a column a figure; text that a spreadsheet would run is quoted with an apostrophe."""
    figures = sorted({name for run in runs for name in run.figures})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_HEAD, *figures))
    for run in runs:
        seconds = "" if run.seconds is None else f"{run.seconds:g}"
        words = (run.name, run.status, run.model, run.gpu, run.git, " ".join(run.tags))
        name, status, model, gpu, git, tags = (f"'{one}" if one.startswith(_FORMULA) else one for one in words)
        cells = (
            run.id,
            name,
            when(run.started_s),
            seconds,
            status,
            model,
            gpu,
            "" if run.gpus is None else run.gpus,
            git,
            tags,
        )
        writer.writerow((*cells, *(run.figures.get(name, "") for name in figures)))
    return text.getvalue()


def write_parquet(runs: Sequence[LedgerRun], path: str) -> None:
    """A row a run, a column a figure (empty where a run has none), settings as JSON. Raises `InputError`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow; install trilemma[calibrate]") from None
    figures = sorted({name for run in runs for name in run.figures})
    columns: dict[str, list[Any]] = {
        "id": [run.id for run in runs], "name": [run.name for run in runs], "started_s": [run.started_s for run in runs],
        "seconds": [run.seconds for run in runs], "status": [run.status for run in runs], "model": [run.model for run in runs],
        "gpu": [run.gpu for run in runs], "gpus": [run.gpus for run in runs], "git": [run.git for run in runs],
        "tags": [list(run.tags) for run in runs], "config": [json.dumps(dict(run.config), default=str) for run in runs],
    }  # fmt: skip
    columns |= {f"figure.{name}": [run.figures.get(name) for run in runs] for name in figures}
    with written(path):
        pyarrow.parquet.write_table(pyarrow.table(columns), path)


def as_openmetrics(runs: Sequence[LedgerRun]) -> str:
    """The latest run of each name: one gauge a figure (OpenMetrics 1.0)."""
    latest: dict[str, LedgerRun] = {}
    for run in sorted(runs, key=lambda one: one.id):
        latest[run.name] = run
    by_figure: dict[str, list[str]] = {}
    for run in latest.values():
        labels = ",".join(
            f'{key}="{_escaped(value)}"' for key, value in (("name", run.name), ("model", run.model), ("gpu", run.gpu))
        )
        for name, value in run.figures.items():
            metric = "trilemma_run_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
            by_figure.setdefault(metric, []).append(
                f"{metric}{{{labels}}} {value!r} {run.ended_s or run.started_s:.3f}"
            )
    lines = [line for metric, samples in sorted(by_figure.items()) for line in (f"# TYPE {metric} gauge", *samples)]
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
