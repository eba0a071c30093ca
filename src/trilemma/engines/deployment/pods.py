"""Pods of engines: one container with its words, cards, shared memory, caches, probes and the token of the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trilemma.engines.deployment.facts import facts, of_maker
from trilemma.engines.deployment.fleet import FIRST_RANK, EngineGroup, Fleet, NodeSpan, Router
from trilemma.engines.deployment.scripts import container_words

_CACHE = "/root/.cache"


def escaped(words: Sequence[str]) -> list[str]:
    """Words as Kubernetes gives them to the program: it reads ``$(NAME)`` as a variable and ``$$`` as one dollar."""
    return [word.replace("$", "$$") for word in words]


def pod_of(fleet: Fleet, group: EngineGroup, *, config: str | None, port: int | None = None) -> dict[str, Any]:
    """The pod of an engine on one node, or of node 0 of an engine on several. ``config`` names its ConfigMap."""
    container = engine_container(fleet, group, port=port)
    return pod_spec(container, volumes(fleet, group, config=config))


def engine_container(fleet: Fleet, group: EngineGroup, *, port: int | None = None) -> dict[str, Any]:
    """The container that answers requests."""
    port = port or fleet.port
    entry, words = container_words(group, port=port)
    words = escaped(words)
    if group.span is not None:
        words += [_filled(word, rank="0") for word in group.span.leader]
        if group.span.ray_port is not None:
            entry, words = _in_ray(group.span.ray_port, [*entry, *words])
    ports = [{"name": "http", "containerPort": port}]
    if group.side is not None and group.side.flag is not None:
        words += [group.side.flag, str(group.side.first)]
    if group.side is not None:
        ports.append({"name": "side", "containerPort": group.side.first})
    return _container(fleet, group, entry, words) | {"ports": ports} | probes(fleet.health)


def worker_pod(fleet: Fleet, group: EngineGroup, span: NodeSpan, *, config: str | None) -> dict[str, Any]:
    """The pod of every other node: it answers no requests, so nothing probes it; its group restarts with it."""
    names = facts()["kubernetes"]
    entry, words = container_words(group, port=None)
    words = escaped(words)
    if span.ray_port is not None:
        script = f'exec ray start --address="${names["leader_address"]}:{span.ray_port}" --block'
        entry, words = ["/bin/sh", "-c", *escaped([script])], []
    elif any(FIRST_RANK in word for word in span.worker):
        # Kubernetes fills in names but cannot multiply: a shell does.
        values = {"leader": f"${names['leader_address']}", "rank": f"${names['worker_index']}"}
        first = f"$(({names['worker_index']} * {span.ranks}))"
        own = [f'"{word.format(first=first, **values)}"' if "{" in word else word for word in span.worker]
        entry, words = ["/bin/sh", "-c", *escaped([f'exec "$@" {" ".join(own)}']), "sh"], [*entry, *words]
    else:
        words += [_filled(word, rank=f"$({names['worker_index']})") for word in span.worker]
    return pod_spec(_container(fleet, group, entry, words), volumes(fleet, group, config=config))


def _filled(word: str, *, rank: str) -> str:
    leader = f"$({facts()['kubernetes']['leader_address']})"
    return word.format(leader=leader, rank=rank) if "{" in word else word


def _in_ray(port: int, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The engine's words behind the head of a Ray cluster, which the other nodes join."""
    script = f'ray start --head --port={port} && exec "$@"'
    return ["/bin/sh", "-c", *escaped([script]), "sh"], list(words)


def _container(fleet: Fleet, group: EngineGroup, entry: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    resources = {of_maker(fleet.maker)["resource"]: str(group.gpus_per_node)}
    environment: list[dict[str, Any]] = [token(facts()["kubernetes"]["token_secret"])]
    environment += [{"name": name, "value": value} for name, value in group.environment]
    side = group.side
    if side is not None and side.variable is not None:
        environment.append({"name": side.variable, "value": str(side.first)})
    if side is not None and side.host_variable is not None:
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        environment.append({"name": side.host_variable, "valueFrom": address})
    return {
        "name": fleet.engine,
        "image": fleet.image,
        **({"command": list(entry)} if entry else {}),
        **({"args": list(words)} if words else {}),
        "env": environment,
        "resources": {"limits": resources, "requests": dict(resources)},
        "volumeMounts": mounts(fleet, group),
    }


def token(secret: Mapping[str, str]) -> dict[str, Any]:
    """The hub's token out of a Secret that need not exist."""
    reference = {"name": secret["name"], "key": secret["key"], "optional": True}
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}


def probes(health: str) -> dict[str, Any]:
    """An hour to load; then out of the Service when it does not answer, and restarted when it stays silent."""
    times = facts()["kubernetes"]
    get = {"path": health, "port": "http"}
    return {
        "startupProbe": {"httpGet": dict(get), "periodSeconds": 10, "failureThreshold": times["start_s"] // 10},
        "readinessProbe": {"httpGet": dict(get), "periodSeconds": 10, "timeoutSeconds": 10},
        "livenessProbe": {
            "httpGet": dict(get), "periodSeconds": 30, "timeoutSeconds": 30, "failureThreshold": times["silence_s"] // 30,
        },
    }  # fmt: skip


def mounts(fleet: Fleet, group: EngineGroup) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": _CACHE}]
    if fleet.weights.startswith("/"):
        found.append({"name": "model", "mountPath": fleet.weights, "readOnly": True})
    if group.files:
        found.append({"name": "config", "mountPath": "/config", "readOnly": True})
    return found


def volumes(fleet: Fleet, group: EngineGroup, *, config: str | None) -> list[dict[str, Any]]:
    """Memory that ranks share, a cache that outlives a restarted container, and what the command names."""
    size = f"{facts()['kubernetes']['shm_gib_per_gpu'] * group.gpus_per_node}Gi"
    found: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}},
        {"name": "cache", "emptyDir": {}},
    ]
    if fleet.weights.startswith("/"):
        found.append({"name": "model", "hostPath": {"path": fleet.weights}})
    if config is not None:
        found.append({"name": "config", "configMap": {"name": config}})
    return found


def pod_spec(container: Mapping[str, Any], volumes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Variables that Services would put into every pod are off: engines read variables of their own name."""
    return {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "containers": [dict(container)],
        **({"volumes": list(volumes)} if volumes else {}),
    }


def router_pod(fleet: Fleet, router: Router, words: Sequence[str], *, config: str | None) -> dict[str, Any]:
    """The router asks for no card. It answers once every engine does."""
    container = {
        "name": "router",
        "image": router.image,
        ("command" if router.entry == "command" else "args"): list(words),
        "ports": [{"name": "http", "containerPort": fleet.port}],
        **probes(fleet.health),
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}},
    }
    mounted: list[dict[str, Any]] = []
    if config is not None:
        container["volumeMounts"] = [{"name": "config", "mountPath": "/config", "readOnly": True}]
        mounted.append({"name": "config", "configMap": {"name": config}})
    return pod_spec(container, mounted)
