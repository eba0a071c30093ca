"""A cluster as objects of Kubernetes: nodes with labels, and queues as Kueue, Volcano and KAI take them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from trilemma.errors import InputError, shorten
from trilemma.simulation.cluster.nodes import LEVELS, WHOLE, ClusterNode, levels_of
from trilemma.simulation.cluster.quotas import QueueQuota
from trilemma.simulation.cluster.slurm_topology import switches_of

#: Labels of nodes by level: NVIDIA/topograph's, and those of Kueue's documentation.
LABELS: Mapping[str, str] = {
    "nvlink": "network.topology.nvidia.com/accelerator", "leaf": "network.topology.nvidia.com/leaf",
    "rack": "cloud.provider.com/topology-rack", "block": "cloud.provider.com/topology-block",
}  # fmt: skip
_GPU, _PRESENT, _FLAVOR = "nvidia.com/gpu", "nvidia.com/gpu.present", "gpu"
_KUEUE, _KAI, _VOLCANO = "kueue.x-k8s.io/v1beta1", "scheduling.run.ai/v2", "scheduling.volcano.sh/v1beta1"
_HYPER_NODE = "topology.volcano.sh/v1alpha1"
_RECLAIM = {"never": "Never", "lower-priority": "LowerPriority", "any": "Any"}

#: DNS subdomains (RFC 1123) name objects; values of labels are shorter and may hold capitals (kubernetes.io, "Object Names
#: and IDs", "Labels and Selectors").
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", re.ASCII)
_LONGEST_NAME, _LONGEST_LABEL = 253, 63

Object = dict[str, Any]


def written(objects: Iterator[Object]) -> str:
    """Objects as one YAML stream. Raises `InputError` for names and values of labels that Kubernetes takes nowhere."""
    listed = list(objects)
    for one in listed:
        _check_names(one)
    return yaml.safe_dump_all(listed, sort_keys=False)


def _check_names(one: Object) -> None:
    metadata = one["metadata"]
    name = str(metadata["name"])
    if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
        near = re.sub(r"[^a-z0-9.]+", "-", name.lower()[:_LONGEST_NAME]).strip("-.") or "none"
        raise InputError(
            f"{one['kind']} {shorten(name, most=40)!r} is no name that Kubernetes takes (lower-case letters, digits, '-' and"
            f" '.'); call it {shorten(near, most=40)}"
        )
    for label, value in metadata.get("labels", {}).items():
        if len(value) > _LONGEST_LABEL or _LABEL.fullmatch(value) is None:
            raise InputError(
                f"{one['kind']} {name}: {shorten(value, most=40)!r} is no value that the label {label} takes (at most"
                f" {_LONGEST_LABEL} letters, digits, '-', '_' and '.'); rename the domain"
            )


def node_objects(nodes: Sequence[ClusterNode]) -> Iterator[Object]:
    """Nodes with the labels of their domains, to be compared or applied as labels."""
    for one in nodes:
        labels = {LABELS[level]: getattr(one, level) for level in LEVELS if getattr(one, level)}
        labels |= {"nvidia.com/gpu.product": one.model} if one.model else {}
        labels |= {_PRESENT: "true"} if one.gpus else {}
        allocatable: dict[str, Any] = {_GPU: str(one.gpus)}
        allocatable |= {"cpu": f"{one.cpu_milli}m"} if one.cpu_milli else {}
        allocatable |= {"memory": f"{one.memory_mib}Mi"} if one.memory_mib else {}
        node: Object = {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": one.name, "labels": {"kubernetes.io/hostname": one.name, **labels}},
        }  # fmt: skip
        node |= {"spec": {"unschedulable": True}} if one.is_down else {}
        yield node | {"status": {"allocatable": allocatable}}


def kueue_objects(nodes: Sequence[ClusterNode], queues: Sequence[QueueQuota]) -> Iterator[Object]:
    """Topology, ResourceFlavor, Cohorts, ClusterQueues and a LocalQueue for each (Kueue 0.14 and later)."""
    levels = [LABELS[level] for level in reversed(levels_of(nodes))]
    yield {
        "apiVersion": _KUEUE, "kind": "Topology", "metadata": {"name": "cluster"},
        "spec": {"levels": [{"nodeLabel": label} for label in (*levels, "kubernetes.io/hostname")]},
    }  # fmt: skip
    yield {
        "apiVersion": _KUEUE, "kind": "ResourceFlavor", "metadata": {"name": _FLAVOR},
        "spec": {"nodeLabels": {_PRESENT: "true"}, "topologyName": "cluster"},
    }  # fmt: skip
    parents = {one.parent for one in queues}
    for queue in queues:
        one = replace(queue, is_cohort=queue.is_cohort or (queue.nominal is None and queue.name in parents))
        if one.alias:
            yield _local_queue(one.name, one.alias)
            continue
        kind = "Cohort" if one.is_cohort else "ClusterQueue"
        yield {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": one.name}, "spec": _kueue_spec(one)}
        if not one.is_cohort:
            yield _local_queue(one.name, one.name)


def _local_queue(name: str, above: str) -> Object:
    return {
        "apiVersion": _KUEUE, "kind": "LocalQueue", "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterQueue": above},
    }  # fmt: skip


def _kueue_spec(one: QueueQuota) -> Object:
    if one.nominal is None and not one.is_cohort:
        raise InputError(
            f"queue {shorten(one.name, most=40)} states no nominal quota, which a ClusterQueue needs; give one"
        )
    spec: Object = {}
    if one.parent:
        spec["parentName" if one.is_cohort else "cohort"] = one.parent
    if one.nominal is not None:
        quota: Object = {"name": _GPU, "nominalQuota": _whole(one, "nominal")}
        quota |= {"borrowingLimit": _whole(one, "borrowing")} if one.borrowing is not None else {}
        quota |= {"lendingLimit": _whole(one, "lending")} if one.lending is not None else {}
        spec["resourceGroups"] = [{"coveredResources": [_GPU], "flavors": [{"name": _FLAVOR, "resources": [quota]}]}]
    if not one.is_cohort:
        spec["namespaceSelector"] = {}
        spec["preemption"] = {"reclaimWithinCohort": _RECLAIM[one.reclaim], "withinClusterQueue": _RECLAIM[one.within]}
    if one.weight != 1.0:
        spec["fairSharing"] = {"weight": f"{one.weight:g}"}
    return spec


def kai_objects(queues: Sequence[QueueQuota]) -> Iterator[Object]:
    """Queues of KAI: quota, limit (-1: none) and the weight over quota."""
    for one in queues:
        if one.alias:
            continue
        nominal = (one.nominal or 0) / WHOLE
        limit = -1 if one.borrowing is None else nominal + one.borrowing / WHOLE
        gpu = {"quota": _plain(nominal), "limit": _plain(limit), "overQuotaWeight": _plain(one.weight)}
        free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
        spec: Object = {"parentQueue": one.parent} if one.parent else {}
        yield {
            "apiVersion": _KAI, "kind": "Queue", "metadata": {"name": one.name},
            "spec": {**spec, "resources": {"gpu": gpu, "cpu": dict(free), "memory": dict(free)}},
        }  # fmt: skip


def volcano_objects(nodes: Sequence[ClusterNode], queues: Sequence[QueueQuota]) -> Iterator[Object]:
    """HyperNodes of every domain, and Queues: deserved what they own, capability with what they may borrow, guaranteed what
    they do not lend."""
    if levels_of(nodes):
        for name, (children, of_nodes, level) in switches_of(nodes).items():
            kind = "Node" if of_nodes else "HyperNode"
            members = [{"type": kind, "selector": {"exactMatch": {"name": child}}} for child in children]
            tier = levels_of(nodes).index(level) + 1 if level else len(levels_of(nodes)) + 1
            spec: Object = {
                "tier": tier,
                **({"tierName": level} if level else {"tierName": "cluster"}),
                "members": members,
            }
            yield {"apiVersion": _HYPER_NODE, "kind": "HyperNode", "metadata": {"name": name}, "spec": spec}
    for one in queues:
        if one.alias:
            continue
        if one.weight != int(one.weight) or one.weight < 1:
            raise InputError(
                f"queue {shorten(one.name, most=40)}: weight {one.weight:g} is no whole number from 1, as Volcano takes"
            )
        spec = {"parent": one.parent} if one.parent else {}
        spec |= {"weight": int(one.weight)}
        if one.nominal is not None:
            spec |= {"deserved": {_GPU: _whole(one, "nominal")}}
            if one.borrowing is not None:
                spec |= {"capability": {_GPU: _whole(one, "nominal") + _whole(one, "borrowing")}}
            if one.lending is not None:
                spec |= {
                    "guarantee": {
                        "resource": {_GPU: _whole(one, "nominal") - min(_whole(one, "lending"), _whole(one, "nominal"))}
                    }
                }
        yield {"apiVersion": _VOLCANO, "kind": "Queue", "metadata": {"name": one.name}, "spec": spec}


def _whole(one: QueueQuota, name: str) -> int:
    value = getattr(one, name)
    if value % WHOLE:
        raise InputError(
            f"queue {shorten(one.name, most=40)}: {name} {value / WHOLE:g} GPUs; objects of Kubernetes count whole ones"
        )
    return int(value) // WHOLE


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value
