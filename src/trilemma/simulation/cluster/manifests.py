"""What a Kubernetes cluster says of itself, ``kubectl get … -o yaml``: nodes with their labels, queues of Kueue and of KAI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from trilemma.errors import InputError, shorten
from trilemma.simulation.cluster.foreign_files import amount, open_foreign, part, parts
from trilemma.simulation.cluster.kueue_scenarios import milli_cpus
from trilemma.simulation.cluster.nodes import WHOLE, ClusterNode
from trilemma.simulation.cluster.quotas import QueueQuota, Reclaim

#: Words in labels of nodes → the level that they name (NVIDIA topograph, Kueue topologies, clouds).
_LEVELS = {
    "nvlink": ("nvidia.com/gpu.clique", "nvlink", "accelerator"),
    "leaf": ("leafgroup", "leaf"),
    "rack": ("topology-rack", "rack"),
    "block": ("topology-block", "superpod", "block", "spine"),
}
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu")
_BYTES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_KUEUE: Mapping[str, Reclaim] = {"Any": "any", "LowerPriority": "lower-priority", "Never": "never"}


def read_node_manifests(path: Path) -> list[ClusterNode]:
    """The nodes among the objects of a file. Raises `InputError` where there is none."""
    nodes = [_node(one, path) for one in _objects(path) if one.get("kind") == "Node"]
    if not nodes:
        raise InputError(
            f"{path.name} holds no Node; give `kubectl get nodes -o yaml`, a HiveD configuration or a table"
        )
    return nodes


def read_queue_manifests(path: Path) -> list[QueueQuota]:
    """Queues of Kueue (ClusterQueue, Cohort, LocalQueue) or KAI (Queue) with their GPUs. Raises `InputError` where none is."""
    found: list[QueueQuota] = []
    for one in _objects(path):
        kind, group = one.get("kind"), str(one.get("apiVersion", ""))
        if kind in ("ClusterQueue", "Cohort"):
            found.append(_kueue(one, is_cohort=kind == "Cohort", path=path))
        elif kind == "LocalQueue":
            name, above = _name(one, path), str(_spec(one).get("clusterQueue", ""))
            if name != above:
                found.append(QueueQuota(name=name, alias=above, where=f"{path.name}: "))
        elif kind == "Queue" and group.startswith("scheduling.run.ai"):
            found.append(_kai(one, path))
        elif kind == "Queue" and group.startswith("scheduling.volcano.sh"):
            found.append(_volcano(one, path))
    if not found:
        raise InputError(
            f"{path.name} holds no ClusterQueue, Cohort or KAI Queue, nor one of Volcano; give such objects, or a table of queues"
        )
    return _above_others(found)


def level_of_label(label: str) -> str:
    """The level of the topology that a label of nodes names; "" where it names none."""
    return next((level for level, words in _LEVELS.items() if any(word in label for word in words)), "")


def _above_others(queues: Sequence[QueueQuota]) -> list[QueueQuota]:
    """Queues of KAI and Volcano that are above others take no jobs themselves; a cohort of Kueue may be named as a queue is."""
    parents = {one.parent for one in queues if one.parent}
    if any(one.is_cohort for one in queues):
        return list(queues)
    return [replace(one, is_cohort=True, nominal=one.nominal or None) if one.name in parents else one for one in queues]


def _node(one: Mapping[str, Any], path: Path) -> ClusterNode:
    labels, free = part(one, "metadata", "labels"), part(one, "status", "allocatable")
    gpus = next((free[name] for name in GPU_RESOURCES if name in free), 0)
    domains: Any = {
        level: next((str(value) for word in words for label, value in labels.items() if word in str(label)), "")
        for level, words in _LEVELS.items()
    }
    return ClusterNode(
        name=_name(one, path),
        gpus=_whole(gpus, "GPUs", path),
        model=str(labels.get("nvidia.com/gpu.product", "")),
        cpu_milli=milli_cpus(free.get("cpu", 0), "cpu", path),
        memory_mib=_mebibytes(free.get("memory", 0)),
        is_down=_is_down(one),
        **domains,
    )


def _volcano(one: Mapping[str, Any], path: Path) -> QueueQuota:
    """A Queue of Volcano: ``deserved`` is its own, ``capability`` with what it may borrow, ``guarantee`` what it never lends."""
    spec = _spec(one)
    guaranteed = part(spec, "guarantee", "resource")
    own, most, kept = (_volcano_gpus(of, path) for of in (part(spec, "deserved"), part(spec, "capability"), guaranteed))
    return QueueQuota(
        name=_name(one, path), parent=str(spec.get("parent") or ""), nominal=own,
        borrowing=None if most is None else max(most - (own or 0), 0),
        lending=None if kept is None else max((own or 0) - kept, 0),
        weight=amount(spec.get("weight") or 1, "weight", path), where=f"{path.name}: ",
    )  # fmt: skip


def _volcano_gpus(resources: Any, path: Path) -> int | None:
    found = (
        next((resources[name] for name in GPU_RESOURCES if name in resources), None)
        if isinstance(resources, Mapping)
        else None
    )
    return None if found is None else _whole(found, "GPUs", path) * WHOLE


def _is_down(one: Mapping[str, Any]) -> bool:
    """Whether nothing new is put there: cordoned, or not ready."""
    ready = [of.get("status") for of in parts(part(one, "status"), "conditions") if of.get("type") == "Ready"]
    return bool(_spec(one).get("unschedulable")) or any(str(state) != "True" for state in ready)


def _kueue(one: Mapping[str, Any], *, is_cohort: bool, path: Path) -> QueueQuota:
    spec = _spec(one)
    preemption = part(spec, "preemption")
    within: Literal["never", "lower-priority"] = "never"
    if preemption.get("withinClusterQueue", "Never") != "Never":
        within = "lower-priority"
    quotas = list(_gpu_quotas(spec))
    limits: dict[str, int | None] = {}
    for name in ("nominalQuota", "borrowingLimit", "lendingLimit"):
        stated = [_whole(one[name], name, path) * WHOLE for one in quotas if one.get(name) is not None]
        # one flavor without a bound leaves all of them unbounded
        bounded = bool(stated) and (name == "nominalQuota" or len(stated) == len(quotas))
        limits[name] = sum(stated) if bounded else None
    return QueueQuota(
        name=_name(one, path),
        parent=str(spec.get("parentName") or spec.get("cohortName") or spec.get("cohort") or spec.get("parent") or ""),
        nominal=limits["nominalQuota"], borrowing=limits["borrowingLimit"], lending=limits["lendingLimit"],
        weight=amount(part(spec, "fairSharing").get("weight", 1), "weight", path),
        reclaim=_KUEUE.get(str(preemption.get("reclaimWithinCohort", "Never")), "never"), within=within,
        is_cohort=is_cohort, where=f"{path.name}: ",
    )  # fmt: skip


def _gpu_quotas(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Quotas of GPUs of all flavors."""
    for group in parts(spec, "resourceGroups"):
        for flavor in parts(group, "flavors"):
            yield from (one for one in parts(flavor, "resources") if one.get("name") in GPU_RESOURCES)


def _kai(one: Mapping[str, Any], path: Path) -> QueueQuota:
    """-1 is no bound, for quota and limit (KAI-Scheduler, docs/queues); what may be borrowed is the limit less the quota."""
    spec = _spec(one)
    gpu = part(spec, "resources", "gpu")
    quota, limit = (amount(gpu.get(name, default), name, path) for name, default in (("quota", 0), ("limit", -1)))
    return QueueQuota(
        name=_name(one, path), parent=str(spec.get("parentQueue") or ""), nominal=round(max(quota, 0) * WHOLE),
        borrowing=None if limit < 0 else round(max(limit - max(quota, 0), 0) * WHOLE),
        weight=amount(gpu.get("overQuotaWeight", 1), "overQuotaWeight", path), where=f"{path.name}: ",
    )  # fmt: skip


def _objects(path: Path) -> Iterator[Mapping[str, Any]]:
    found = open_foreign(path)
    if found.dialect != "kubernetes":
        raise InputError(f"{path.name} is no file of Kubernetes; give kubectl get … -o yaml, or -o json")
    yield from found.content


def _mebibytes(value: object) -> int:
    """A quantity of memory in MiB, whole ones; 0 where it is not understood."""
    found = re.fullmatch(r"(\d{1,18})(Ki|Mi|Gi|Ti)?", str(value))
    return 0 if found is None else int(found[1]) * _BYTES[found[2] or ""] // 2**20


def _spec(one: Mapping[str, Any]) -> Mapping[str, Any]:
    return part(one, "spec")


def _name(one: Mapping[str, Any], path: Path) -> str:
    name = part(one, "metadata").get("name")
    if not name:
        raise InputError(f"{path.name}: a {one.get('kind')} has no metadata.name; give it one")
    return str(name)


def _whole(value: object, name: str, path: Path) -> int:
    text = str(value)
    if not text.isdigit():
        raise InputError(f"{path.name}: {name} {shorten(text)!r} is not a whole number of 0 or more")
    return int(text)
