"""What Ray says of itself as rows of tables: ``ray list nodes``, ``placement-groups`` and ``jobs`` as JSON, the YAML of its
cluster launcher, and objects of KubeRay.

Fields: python/ray/util/state/common.py (NodeState, PlacementGroupState, JobState), python/ray/autoscaler/ray-schema.json
(available_node_types), ray-operator/apis/ray/v1 (RayCluster, RayJob).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trilemma.errors import InputError, shorten
from trilemma.simulation.cluster.foreign_files import is_launcher, part, parts
from trilemma.simulation.cluster.kubernetes_rows import pod_gpus

_TYPE = "accelerator_type:"
#: Nodes of one file, and digits of a count of Ray.
_MOST_NODES, _MOST_COUNT = 200_000, 1e9
#: States of Ray's jobs, and of its placement groups, as those of Slurm.
_STATES = {
    "PENDING": "PENDING", "RUNNING": "RUNNING", "SUCCEEDED": "COMPLETED", "FAILED": "FAILED", "STOPPED": "CANCELLED",
    "CREATED": "RUNNING", "RESCHEDULING": "PENDING",
}  # fmt: skip

Row = dict[str, Any]


def node_rows(documents: Sequence[Any], path: Path) -> Iterator[Row]:
    """Nodes of ``ray list nodes``, as many as a launcher's YAML may start, or the pods of each RayCluster. Raises `InputError`
    where there are none."""
    found = 0
    for one in documents:
        for row in _nodes_of(one) if isinstance(one, Mapping) else ():
            found += 1
            if found > _MOST_NODES:
                raise InputError(f"{path.name} names more than {_MOST_NODES:,} nodes; give fewer")
            yield row
    if not found:
        raise InputError(
            f"{path.name} holds no node; give ray list nodes --format json, a cluster's YAML with resources, or a table"
        )


def _nodes_of(one: Mapping[str, Any]) -> Iterator[Row]:
    if one.get("kind") == "RayCluster":
        return kube_nodes(one)
    return _launched(one) if is_launcher(one) else _listed(one)


def job_rows(documents: Sequence[Any], path: Path) -> Iterator[Row]:
    """Placement groups, which are gangs, or jobs that say how many GPUs they take. Raises `InputError` where there are none."""
    found = 0
    for one in documents:
        row = None if not isinstance(one, Mapping) else _group(one) if "placement_group_id" in one else _submitted(one)
        if row is not None and row["gpus"]:
            found += 1
            yield row
    if not found:
        raise InputError(
            f"{path.name} names no GPUs of a job (entrypoint_num_gpus); give ray list placement-groups --detail --format json,"
            " whose bundles do"
        )


def kube_nodes(one: Mapping[str, Any]) -> Iterator[Row]:
    """The pods of a RayCluster as nodes: its head and as many workers as it asks for."""
    name = shorten(str(part(one, "metadata").get("name") or "ray"))
    for group in _groups_of(part(one, "spec")):
        yield from _alike(f"{name}-{group.name}", {"GPU": group.gpus}, group.pods)


class _PodGroup(NamedTuple):
    """``pods`` alike of a RayCluster, each with ``gpus``."""

    name: str
    pods: int
    gpus: int


def _groups_of(spec: Mapping[str, Any]) -> Iterator[_PodGroup]:
    """The head of a RayCluster and its groups of workers: counted, for a file may ask for a billion."""
    yield _PodGroup("head", 1, pod_gpus(part(spec, "headGroupSpec", "template")))
    for group in parts(spec, "workerGroupSpecs"):
        many = _count(group.get("replicas", group.get("minReplicas")), 1) * _count(group.get("numOfHosts"), 1)
        yield _PodGroup(shorten(str(group.get("groupName") or "workers")), many, pod_gpus(part(group, "template")))


def kube_job(one: Mapping[str, Any]) -> Row:
    """A RayJob: the GPUs of its workers as a gang of pods, when it came, began and ended, its queue of Kueue."""
    spec, status, meta = part(one, "spec"), part(one, "status"), part(one, "metadata")
    groups = [group for group in _groups_of(part(spec, "rayClusterSpec")) if group.gpus and group.pods]
    each = max((group.gpus for group in groups), default=_count(spec.get("entrypointNumGpus"), 0))
    state = _STATES.get(str(status.get("jobStatus") or "PENDING").upper(), "PENDING")
    return {
        "job": str(meta.get("name") or ""), "queue_name": str(part(meta, "labels").get("kueue.x-k8s.io/queue-name") or ""),
        "gpus": sum(group.gpus * group.pods for group in groups) or each,
        "pods": sum(group.pods for group in groups if group.gpus == each) or 1,
        "submit": meta.get("creationTimestamp") or "", "start": status.get("startTime") or "",
        "end": status.get("endTime") or "" if state not in ("PENDING", "RUNNING") else "", "state": state,
    }  # fmt: skip


def _listed(one: Mapping[str, Any]) -> Iterator[Row]:
    total = one.get("resources_total")
    if isinstance(total, Mapping):
        name = one.get("node_name") or one.get("node_id") or ""
        yield _node(str(name), total, down=str(one.get("state", "ALIVE")).upper() != "ALIVE")


def _launched(one: Mapping[str, Any]) -> Iterator[Row]:
    """As many nodes of each type as may be there: a head, and workers up to the most."""
    types: Mapping[str, Any] = one["available_node_types"]
    if not any(_count(part(of, "resources").get("GPU"), 0) for of in types.values()):
        return
    for name, of in types.items():
        head = 1 if name == one.get("head_node_type") else 0
        most = _count(part({"of": of}, "of").get("max_workers", one.get("max_workers")), 0)
        yield from _alike(shorten(str(name)), part(of, "resources"), head + most)


def _alike(name: str, total: Mapping[str, Any], many: int) -> Iterator[Row]:
    """``many`` nodes with the resources ``total``, no more than a file may name."""
    for at in range(min(many, _MOST_NODES + 1)):
        yield _node(f"{name}-{at}", total, down=False)


def _node(name: str, total: Mapping[str, Any], *, down: bool) -> Row:
    kind = next((str(word)[len(_TYPE) :] for word in total if str(word).startswith(_TYPE)), "")
    return {
        "name": name, "gpus": _count(total.get("GPU"), 0), "model": kind, "cpu_milli": 1000 * _count(total.get("CPU"), 0),
        "down": "yes" if down else "no",
    }  # fmt: skip


def _group(one: Mapping[str, Any]) -> Row | None:
    state = _STATES.get(str(one.get("state", "")).upper())
    bundles = [_count(part(bundle, "unit_resources").get("GPU"), 0) for bundle in parts(one, "bundles")]
    cards = [gpus for gpus in bundles if gpus]
    if state is None or not cards:  # removed: nobody says when it began
        return None
    alike = len(set(cards)) == 1
    return {
        "job": str(one.get("name") or one.get("placement_group_id")), "gpus": sum(cards),
        "pods": len(cards) if alike else sum(cards), "submit": 0, "start": "", "end": "", "state": state,
    }  # fmt: skip


def _submitted(one: Mapping[str, Any]) -> Row:
    state = _STATES.get(str(one.get("status", "")).upper(), "PENDING")
    asked = one.get("entrypoint_num_gpus") or part(one, "entrypoint_resources").get("GPU")
    began, ended = (_seconds(one.get(name)) for name in ("start_time", "end_time"))
    return {
        "job": str(one.get("submission_id") or one.get("job_id") or ""), "gpus": _count(asked, 0), "submit": began,
        "start": began if state != "PENDING" else "", "end": ended if state not in ("PENDING", "RUNNING") else "", "state": state,
    }  # fmt: skip


def _count(value: Any, default: int) -> int:
    """A whole number of at most a billion; ``default`` where it is none."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= _MOST_COUNT
        or value != int(value)
    ):
        return default
    return int(value)


def _seconds(value: Any) -> float | str:
    """Seconds of Ray's milliseconds; "" where it is no time."""
    return value / 1e3 if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15 else ""
