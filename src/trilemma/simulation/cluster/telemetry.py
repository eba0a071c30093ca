"""How well jobs used their cards, from what DCGM's exporter told of them: Prometheus text, answers of its API, or a table."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trilemma.errors import InputError, shorten
from trilemma.outside_files import BROKEN
from trilemma.simulation.cluster.cells import TableColumns
from trilemma.simulation.cluster.jobs import TICKS, ClusterJob
from trilemma.simulation.row_files import open_text, read_rows

_SAMPLE = re.compile(r"(DCGM_FI_\w{1,80})\{(.{0,8000})\}\s+(\S{1,40})(?:\s+(\d{1,17}))?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w{0,60})="((?:[^"\\]|\\.){0,400})"')
_MOST_BYTES, _MOST_SAMPLES = 512 * 2**20, 20_000_000
#: Cycles with the tensor cores busy: the nearest that a counter comes to the use of the cards (1 is all).
TENSOR = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
#: Labels of a job and of a node, the first that is there counts.
_JOB = ("hpc_job", "slurm_job_id", "jobid", "job_id", "exported_job", "pod")
_NODE = ("Hostname", "hostname", "node", "kubernetes_node", "instance")


class TelemetrySample(NamedTuple):
    """``at_s`` in seconds of the clock, None where it is of now; ``use`` from 0 to 1."""

    job: str
    node: str
    at_s: float | None
    use: float


def with_telemetry(jobs: Sequence[ClusterJob], path: Path, origin_s: float) -> tuple[list[ClusterJob], int]:
    """``jobs`` with the mean use of their tensor cores as their ``mfu``, and how many have one; ``origin_s`` is the time of the
    first job. Samples that name no job belong to the one job that was seen on their node then."""
    by_name = {one.name: at for at, one in enumerate(jobs)}
    on_node = _stays(jobs)
    sums: dict[int, float] = defaultdict(float)
    counts: dict[int, int] = defaultdict(int)
    for sample in _samples(path):
        at = by_name.get(sample.job)
        if at is None:
            at = _alone(on_node.get(sample.node, ()), None if sample.at_s is None else (sample.at_s - origin_s) * TICKS)
        if at is not None:
            sums[at] += sample.use
            counts[at] += 1
    if not counts:
        raise InputError(
            f"{path.name}: none of its samples of {TENSOR} is of a job that is known; give jobs with nodes, or the label hpc_job"
        )
    found = list(jobs)
    for at, many in counts.items():
        found[at] = replace(found[at], mfu=min(max(sums[at] / many, 1e-6), 1.0))
    return found, len(counts)


def _stays(jobs: Sequence[ClusterJob]) -> Mapping[str, Sequence[tuple[float, float, int]]]:
    """By node (begin, end, job) of the jobs that were seen there."""
    found: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for at, one in enumerate(jobs):
        if one.start_ticks is not None:
            end = math.inf if one.end_ticks is None else float(one.end_ticks)
            for node in one.on_nodes:
                found[node].append((float(one.start_ticks), end, at))
    return {node: sorted(every) for node, every in found.items()}


def _alone(stays: Sequence[tuple[float, float, int]], at: float | None) -> int | None:
    """The one job that is there ``at`` that time (None: still); None where none or several are."""
    if at is None:
        there = [which for _, end, which in stays if end == math.inf]
    else:
        until = bisect_right(stays, (at, math.inf, 0))
        there = [which for begin, end, which in stays[max(0, until - 64) : until] if begin <= at < end]
    return there[0] if len(there) == 1 else None


def _samples(path: Path) -> Iterator[TelemetrySample]:
    for count, one in enumerate(_every(path)):
        if count >= _MOST_SAMPLES:
            raise InputError(f"{path.name} holds more than {_MOST_SAMPLES:,} samples; give a coarser step")
        if math.isfinite(one.use):
            yield one


def _every(path: Path) -> Iterator[TelemetrySample]:
    with open_text(path, "telemetry") as file:
        try:
            head = file.read(4096)
            file.seek(0)
        except (UnicodeDecodeError, *BROKEN) as error:
            raise InputError(
                f"{path.name} cannot be read as text ({shorten(str(error))}); give DCGM's telemetry"
            ) from None
        if head.lstrip().startswith("{") and '"result"' in head:
            yield from _of_api(file.read(_MOST_BYTES + 1), path)
        elif head.startswith("#") or "{" in head.partition("\n")[0]:
            yield from _of_text(file)
        else:
            yield from _of_table(file, path)


def _of_text(lines: Iterable[str]) -> Iterator[TelemetrySample]:
    for line in lines:
        found = _SAMPLE.match(line[:10_000])
        if found is not None and found[1] == TENSOR:
            try:
                value = float(found[3])
            except ValueError:
                continue
            at = None if found[4] is None else int(found[4]) / 1000
            yield _sample(dict(_LABEL.findall(found[2])), at, value)


def _of_api(text: str, path: Path) -> Iterator[TelemetrySample]:
    """``/api/v1/query`` and ``/api/v1/query_range`` of Prometheus: a vector or a matrix."""
    if len(text) > _MOST_BYTES:
        raise InputError(f"{path.name} is larger than {_MOST_BYTES >> 20} MiB; give a shorter time")
    try:
        result = json.loads(text)["data"]["result"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise InputError(f"{path.name} is no answer of Prometheus; give that of /api/v1/query_range") from None
    for series in result if isinstance(result, list) else ():
        labels = series.get("metric") if isinstance(series, dict) else None
        if not isinstance(labels, dict) or labels.get("__name__", TENSOR) != TENSOR:
            continue
        for pair in series.get("values") or [series.get("value")]:
            if isinstance(pair, list) and len(pair) == 2:
                try:
                    yield _sample(labels, float(pair[0]), float(pair[1]))
                except (TypeError, ValueError, OverflowError):
                    continue


def _of_table(file: Any, path: Path) -> Iterator[TelemetrySample]:
    columns = None
    for line, values in read_rows(file, path):
        if columns is None:
            columns = TableColumns("telemetry", values, path)
            columns.need("use")
            columns.need("job", "node")
        row = columns.row(line, values)
        use = row.number("use")
        if use is not None:
            if use > 1:
                raise row.wrong("use", row.word("use"), "is out of range; give the share of cycles from 0 to 1")
            yield TelemetrySample(row.word("job"), row.word("node"), row.seconds("at"), use)


def _sample(labels: Mapping[str, Any], at_s: float | None, value: float) -> TelemetrySample:
    job = next((str(labels[one]) for one in _JOB if labels.get(one)), "")
    node = next((str(labels[one]) for one in _NODE if labels.get(one)), "").partition(":")[0]
    return TelemetrySample(job, node, at_s, value)
