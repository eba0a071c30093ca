"""Kubernetes objects of a fleet: Deployments and LeaderWorkerSets, their Services, and the router between pools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.engines.deployment.facts import facts
from trilemma.engines.deployment.fleet import End, EngineGroup, Fleet, NodeSpan
from trilemma.engines.deployment.pods import escaped, pod_of, router_pod, worker_pod
from trilemma.engines.deployment.yaml_text import yaml_text
from trilemma.errors import InputError, shorten

#: Longest name of a fleet: roles and numbers are added, and a StatefulSet's name may have 52 characters.
_MOST_NAME = 40
#: What of a card's name may stand in a comment.
_CARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


def manifests(fleet: Fleet, *, card: str | None = None) -> dict[str, str]:
    """File name → content: ``kubernetes.yaml``, or one file for each pool and for the router between them.

    An engine on one node is a Deployment (behind a router, which needs names that stay, a StatefulSet); one on several
    nodes is a LeaderWorkerSet. ``card`` is told in a comment: which nodes have it is the cluster's to say. Raises
    `InputError` where the cards, the engine or the model's path allow none.
    """
    check(fleet)
    name = name_of(fleet)
    if not fleet.apart:
        group = fleet.groups[0]
        objects = [*_config(name, group.files), *_workload(fleet, group, name), _service(fleet, group, name)]
        return {"kubernetes.yaml": yaml_text(objects, comments=comments(fleet, group, card))}
    contents = {}
    for group in fleet.groups:
        own = f"{name}-{group.role}"
        objects = [*_config(own, group.files), *_workload(fleet, group, own)]
        contents[f"kubernetes-{group.role}.yaml"] = yaml_text(objects, comments=comments(fleet, group, card))
    contents["kubernetes-router.yaml"] = yaml_text(
        _router(fleet, name), comments=[f"{fleet.label}: router of both pools"]
    )
    return contents


def name_of(fleet: Fleet) -> str:
    """A DNS label out of the engine's and the model's name: that of the Service that clients call."""
    word = re.sub(r"[^a-z0-9]+", "-", f"{fleet.engine}-{fleet.model.rsplit('/', 1)[-1]}".lower()).strip("-")
    return word[:_MOST_NAME].rstrip("-")


def check(fleet: Fleet) -> None:
    """Raises `InputError` for a fleet that no container of a public image runs."""
    if fleet.unmanaged is not None:
        raise InputError(f"no Kubernetes files for {fleet.label}: {fleet.unmanaged}")
    if fleet.image is None:
        raise InputError(f"no public image of {fleet.label} for {shorten(fleet.maker)} cards is known; use the scripts")
    if fleet.on_this_machine:
        raise InputError(
            f"{shorten(fleet.weights)} is a path on this machine; a container needs a hub id or an absolute path of its node"
        )


def comments(fleet: Fleet, group: EngineGroup, card: str | None) -> list[str]:
    """What stands above the objects of ``group``: engine and release, shape, the card that it was planned for."""
    engines = "1 engine" if group.replicas == 1 else f"{group.replicas} engines"
    cards = f"{group.gpus_per_node} GPU{'s' if group.gpus_per_node > 1 else ''}"
    shape = cards if group.nodes == 1 else f"{group.nodes} nodes x {cards}"
    role = "" if group.role == "serve" else f"{group.role}, "
    lines = [f"{fleet.label}: {role}{engines} of {shape}"]
    if card is not None and _CARD.fullmatch(card):
        lines.append(f"Planned for {card}: select its nodes where the cluster has other cards too")
    if group.nodes > 1:
        lines.append("LeaderWorkerSet is an add-on: kubernetes-sigs/lws")
    return lines


def labels(name: str, role: str) -> dict[str, str]:
    return {"app": name, "role": role}


def _config(name: str, files: Mapping[str, str]) -> list[dict[str, Any]]:
    if not files:
        return []
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(files)}]


def _workload(fleet: Fleet, group: EngineGroup, name: str) -> list[dict[str, Any]]:
    if group.span is not None:
        return [_nodes(fleet, group, group.span, name)]
    own = labels(name, group.role)
    config = name if group.files else None
    template = {"metadata": {"labels": own}, "spec": pod_of(fleet, group, config=config)}
    if fleet.apart:
        # The router lists engines by name; all may start at once.
        spec = {
            "replicas": group.replicas,
            "selector": {"matchLabels": dict(own)},
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "template": template,
        }
        return [_object("StatefulSet", name, own, spec), _headless(fleet, own, name)]
    return [deployment(group, name, own, template)]


def deployment(group: EngineGroup, name: str, own: Mapping[str, str], template: Mapping[str, Any]) -> dict[str, Any]:
    """Engines of one node that need no name: a new pod finds no free cards beside the old one, so the old one goes first."""
    spec = {
        "replicas": group.replicas,
        "selector": {"matchLabels": dict(own)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "progressDeadlineSeconds": facts()["kubernetes"]["start_s"] + 600,
        "template": template,
    }
    return _object("Deployment", name, own, spec)


def _object(kind: str, name: str, own: Mapping[str, str], spec: Mapping[str, Any]) -> dict[str, Any]:
    api = facts()["kubernetes"]["leader_worker_set"] if kind == "LeaderWorkerSet" else "apps/v1"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": dict(own)}, "spec": dict(spec)}


def _nodes(fleet: Fleet, group: EngineGroup, span: NodeSpan, name: str) -> dict[str, Any]:
    own = labels(name, group.role)
    config = name if group.files else None
    leader = {"metadata": {"labels": own}, "spec": pod_of(fleet, group, config=config)}
    worker = {"metadata": {"labels": dict(own)}, "spec": worker_pod(fleet, group, span, config=config)}
    return set_of_nodes(group, set_name(fleet, name), own, leader, worker)


def set_of_nodes(
    group: EngineGroup, name: str, own: Mapping[str, str], leader: Mapping[str, Any], worker: Mapping[str, Any]
) -> dict[str, Any]:
    """A group of pods is one engine: the leader answers requests, and all restart together."""
    template = {
        "size": group.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": leader,
        "workerTemplate": worker,
    }
    return _object("LeaderWorkerSet", name, own, {"replicas": group.replicas, "leaderWorkerTemplate": template})


def set_name(fleet: Fleet, name: str) -> str:
    """A LeaderWorkerSet makes a headless Service of its own name, which clients' Service must not have."""
    return name if fleet.apart else f"{name}-nodes"


def _service(fleet: Fleet, group: EngineGroup, name: str) -> dict[str, Any]:
    own = labels(name, group.role)
    selector: dict[str, str] = dict(own)
    if group.nodes > 1:
        selector[facts()["kubernetes"]["worker_index_label"]] = "0"
    ports = [{"name": "http", "port": fleet.port, "targetPort": "http"}]
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": own},
        "spec": {"selector": selector, "ports": ports},
    }  # fmt: skip


def _headless(fleet: Fleet, own: Mapping[str, str], name: str) -> dict[str, Any]:
    """Gives each pod a name in DNS, before it is ready: engines and router look for each other while they load."""
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": dict(own)},
        "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": True, "selector": dict(own),
            "ports": [{"name": "http", "port": fleet.port, "targetPort": "http"}],
        },
    }  # fmt: skip


def ends_of(fleet: Fleet, name: str) -> list[End]:
    """Every engine by the name that its StatefulSet or LeaderWorkerSet gives it in DNS."""
    return [
        End(
            role=group.role,
            host=f"{name}-{group.role}-{number}.{name}-{group.role}",
            port=fleet.port,
            side=None if group.side is None else group.side.first,
        )
        for group in fleet.groups
        for number in range(group.replicas)
    ]


def _router(fleet: Fleet, name: str) -> list[dict[str, Any]]:
    router = fleet.router
    if router is None or router.image is None:
        raise InputError(f"no public router of {fleet.label} is known for two pools; use the scripts")
    route = router.route(ends_of(fleet, name), fleet.port)
    own = labels(name, "router")
    words = escaped([f"/config/{word}" if word in route.files else word for word in route.words])
    config = f"{name}-router" if route.files else None
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": dict(own)},
        "progressDeadlineSeconds": facts()["kubernetes"]["start_s"] + 600,
        "template": {"metadata": {"labels": own}, "spec": router_pod(fleet, router, words, config=config)},
    }
    ports: Sequence[Mapping[str, Any]] = [{"name": "http", "port": fleet.port, "targetPort": "http"}]
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": dict(own)},
        "spec": {"selector": dict(own), "ports": list(ports)},
    }  # fmt: skip
    return [*_config(f"{name}-router", route.files), _object("Deployment", name, own, spec), service]
