"""A line for each job of a simulated cluster, as JSON lines or CSV."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from trilemma.outside_files import written
from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import TICKS


def write_jobs(run: ClusterRun, path: Path) -> None:
    """A line for each job: when it came, began and ended, what it lost."""
    names = (
        "job",
        "queue",
        "gpus",
        "submit_s",
        "start_s",
        "finish_s",
        "wait_s",
        "preemptions",
        "lost_s",
        "nodes",
        "span",
    )
    with written(path), path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        if path.suffix == ".csv":
            lines.writerow(names)
        for one in run.runs:
            row = _job_line(one)
            if path.suffix == ".csv":
                lines.writerow(["" if value is None else value for value in row])
            else:
                print(json.dumps(dict(zip(names, row, strict=True))), file=file)


def _job_line(one: Any) -> tuple[Any, ...]:
    job = one.job
    times = [None if at is None else round(at / TICKS, 6) for at in (job.submit_ticks, one.first_start, one.finished)]
    wait = None if one.first_start is None else round((one.first_start - job.submit_ticks) / TICKS, 6)
    where = one.stretches[-1][2] if one.stretches else one.placed
    nodes = len({pod.node for pod in where})
    return (
        job.name,
        job.queue,
        job.shape.total_gpus,
        *times,
        wait,
        one.preemptions,
        round(one.lost / TICKS, 6),
        nodes,
        one.span,
    )
