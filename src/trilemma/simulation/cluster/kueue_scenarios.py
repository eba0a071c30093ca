"""Kueue's performance scenarios: cohorts of queues with sets of workloads, on a topology of nodes or on quota alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

from trilemma.commands.bounded_yaml import load_all
from trilemma.errors import InputError, shorten
from trilemma.outside_files import read_text
from trilemma.simulation.cluster.jobs import TICKS, ClusterJob, GangShape
from trilemma.simulation.cluster.nodes import ClusterNode
from trilemma.simulation.cluster.quotas import QueueQuota, Reclaim

_MOST_JOBS = 5_000_000
#: Milliseconds between the queues: three objects each at the runner's 1,000 requests a second (hack/make/test.mk, --qps=1000).
_CREATED_MS = 3
_RECLAIM: Mapping[str, Reclaim] = {"Any": "any", "LowerPriority": "lower-priority", "Never": "never"}


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeScenario:
    """All that one file states."""

    nodes: tuple[ClusterNode, ...]
    queues: tuple[QueueQuota, ...]
    jobs: tuple[ClusterJob, ...]


def states_scenario(path: Path) -> bool:
    """Whether a file is YAML of a scenario, not of objects of Kubernetes."""
    if path.suffix not in (".yaml", ".yml"):
        return False
    documents = load_all(read_text(path), name=path.name)
    return not (documents and isinstance(documents[0], Mapping) and "kind" in documents[0])


def read_scenario(path: Path) -> WholeScenario:
    """A generator.yaml of Kueue's test/performance/scheduler: CPUs are the units. Raises `InputError`."""
    (document, *_) = load_all(read_text(path), name=path.name) or [None]
    cohorts = document.get("cohorts") if isinstance(document, Mapping) else None
    if not isinstance(cohorts, list):
        raise InputError(
            f"{path.name} has no cohorts; give a table of jobs, or a scenario of Kueue's performance tests"
        )
    queues: list[QueueQuota] = []
    jobs: list[ClusterJob] = []
    levels = [str(one.get("nodeLabel")) for one in (document.get("topology") or {}).get("levels", ())]
    for set_of in cohorts:
        for at in range(_count(set_of, "count", path)):
            cohort = f"{set_of.get('className', 'cohort')}-{at}"
            for queue, stated in _queues(set_of, cohort, path):
                queues.append(queue)
                jobs += _jobs(stated, queue.name, levels, path, _CREATED_MS * len(queues))
                if len(jobs) > _MOST_JOBS:
                    raise InputError(f"{path.name} states more than {_MOST_JOBS:,} workloads; lower a count")
    whole = sum(one.nominal or 0 for one in queues)
    return WholeScenario(nodes=tuple(_nodes(document, whole, path)), queues=tuple(queues), jobs=tuple(jobs))


def _queues(set_of: Mapping[str, Any], cohort: str, path: Path) -> Iterator[tuple[QueueQuota, Mapping[str, Any]]]:
    for number, one in enumerate(set_of.get("queuesSets") or ()):
        within: Literal["never", "lower-priority"] = (
            "never" if one.get("withinClusterQueue") == "Never" else "lower-priority"
        )
        for at in range(_count(one, "count", path)):
            quota = QueueQuota(
                name=f"{one.get('className', 'cq')}-{number}-{at}-{cohort}", parent=cohort,
                nominal=milli_cpus(one.get("nominalQuota"), "nominalQuota", path),
                borrowing=milli_cpus(one["borrowingLimit"], "borrowingLimit", path) if "borrowingLimit" in one else None,
                reclaim=_RECLAIM.get(str(one.get("reclaimWithinCohort", "Never")), "never"), within=within,
            )  # fmt: skip
            yield quota, one


def _jobs(queue: Mapping[str, Any], name: str, levels: list[str], path: Path, from_ms: int) -> Iterator[ClusterJob]:
    for set_of in queue.get("workloadsSets") or ():
        each_ms, at_ms = _count(set_of, "creationIntervalMs", path), from_ms
        stated = set_of.get("workloads") or ()
        shapes = [_shape(one, levels, path) for one in stated]
        for _ in range(_count(set_of, "count", path)):
            for one, shape in zip(stated, shapes, strict=True):
                at_ms += each_ms
                kind = str(one.get("className", "workload"))
                yield ClusterJob(
                    name=f"{kind}-{at_ms - from_ms}", kind=kind, submit_ticks=at_ms * TICKS // 1000, shape=shape, queue=name,
                    work_ticks=_count(one, "runtimeMs", path) * TICKS // 1000, priority=int(one.get("priority", 0)),
                )  # fmt: skip


def _shape(one: Mapping[str, Any], levels: list[str], path: Path) -> GangShape:
    shape = GangShape(
        pods=int(one.get("podCount") or 1), gpus=0, cpu_milli=milli_cpus(one.get("request"), "request", path)
    )
    wanted = one.get("tasLevel")
    if not wanted:
        return shape
    if wanted not in levels:
        raise InputError(f"{path.name}: tasLevel {shorten(str(wanted))!r} is no level of its topology")
    kind = one.get("tasConstraint")
    size = int(one.get("sliceSize") or 0) if kind == "balanced" else 0
    return replace(shape, within=_level(wanted), strict=kind != "preferred", slice_pods=size)


def _nodes(document: Mapping[str, Any], whole: int, path: Path) -> Iterator[ClusterNode]:
    """Nodes of its topology; one node of all quotas where there is none."""
    levels = (document.get("topology") or {}).get("levels")
    if not levels:
        yield ClusterNode(name="quota", gpus=0, cpu_milli=whole)
        return
    above: list[dict[str, str]] = [{}]
    for level in levels[:-1]:
        label, name = _level(level.get("nodeLabel")), str(level.get("name"))
        above = [{**one, label: f"{name}-{at}"} for one in above for at in range(_count(level, "count", path))]
    cpus = milli_cpus((levels[-1].get("capacity") or {}).get("cpu"), "capacity", path)
    number = 0
    for domain in above:
        words: Any = domain
        for _ in range(_count(levels[-1], "count", path)):
            yield ClusterNode(name=f"node-{number}", gpus=0, cpu_milli=cpus, **words)
            number += 1


def _level(label: object) -> str:
    text = str(label)
    return next((one for one in ("block", "rack", "leaf", "nvlink") if one in text), "rack")


def _count(row: Mapping[str, Any], name: str, path: Path) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{path.name}: {name} {shorten(str(value))!r} is not a whole number of 0 or more")
    return value


def milli_cpus(value: object, name: str, path: Path) -> int:
    """A quantity of Kubernetes in thousandths: 20 and "500m"."""
    text = str(value)
    try:
        found = Decimal(text[:-1]) if text.endswith("m") else Decimal(text) * 1000
    except InvalidOperation:
        found = Decimal(-1)
    if not found.is_finite() or found < 0 or found != int(found):
        raise InputError(f"{path.name}: {name} {shorten(text)!r} is no quantity, such as 20 or 500m")
    return int(found)
