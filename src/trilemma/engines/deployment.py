"""Files that start a server: a script, a container command and a Kubernetes deployment, whatever the engine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

#: Shared memory of the container per GPU: ranks on one node exchange through it.
_SHM_GIB_PER_GPU = 2
#: Maker of the card → (options of docker run, Kubernetes resource).
MAKERS = {
    "nvidia": (("--gpus", "{gpus}"), "nvidia.com/gpu"),
    "amd": (
        ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video", "--cap-add", "SYS_PTRACE",
         "--security-opt", "seccomp=unconfined"),
        "amd.com/gpu",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """One engine's container: ``image``, the words after it, its port and where it reports health.

    ``program`` says whether ``words`` begin with the program itself rather than being arguments of the entry point.
    ``files`` are file name → content that the container finds under ``/config``.
    """

    engine: str
    image: str
    words: Sequence[str]
    port: int
    health: str = "/health"
    program: bool = False
    files: Mapping[str, str] | None = None


def script(command: Sequence[str], *, label: str, head: int, beside_files: bool = False) -> str:
    """A shell script that runs ``command``, its first ``head`` words on one line; in its own folder where it names files."""
    folder = 'cd "$(dirname "$0")"\n' if beside_files else ""
    return f'#!/bin/sh\n# {label}\nset -eu\n{folder}exec {lines(command[:head], command[head:])} \\\n  "$@"\n'


def lines(head: Sequence[str], words: Sequence[str]) -> str:
    """One flag a line, quoted for the shell."""
    groups: list[list[str]] = [list(head)]
    for word in words:
        if word.startswith("-"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return " \\\n  ".join(shlex.join(group) for group in groups)


def docker_run(server: Server, *, gpus: int, maker: str) -> str:
    """``docker run`` on one node, weights cached in the user's own folder."""
    options = [word.format(gpus=gpus) for word in MAKERS[maker][0]]
    head = ["docker", "run", "--rm", "--ipc=host", "-p", f"{server.port}:{server.port}"]
    mounts = ['-v "$HOME/.cache/huggingface:/root/.cache/huggingface"', "-e HF_TOKEN"]
    if server.files:
        mounts.append('-v "$(cd "$(dirname "$0")" && pwd):/config:ro"')
    quoted = " ".join((shlex.join([*head, *options]), *mounts))
    return f'#!/bin/sh\nset -eu\nexec {quoted} \\\n  {lines([server.image], server.words)} \\\n  "$@"\n'


def kubernetes(server: Server, *, gpus: int, maker: str, model: str) -> str:
    """A Deployment of one replica on one node; configuration files as a ConfigMap beside it."""
    name = _label(server.engine, model)
    resources = {MAKERS[maker][1]: str(gpus)}
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_SHM_GIB_PER_GPU * gpus}Gi"}}
    ]
    if server.files:
        mounts.append({"name": "config", "mountPath": "/config"})
        volumes.append({"name": "config", "configMap": {"name": name}})
    container: dict[str, Any] = {
        "name": _label(server.engine, ""),
        "image": server.image,
        ("command" if server.program else "args"): list(server.words),
        "ports": [{"containerPort": server.port}],
        "env": [
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}
        ],
        "readinessProbe": {
            "httpGet": {"path": server.health, "port": server.port}, "periodSeconds": 10, "failureThreshold": 360,
        },
        "resources": {"limits": resources, "requests": dict(resources)},
        "volumeMounts": mounts,
    }  # fmt: skip
    labels = {"app": name}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": dict(labels)},
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {"containers": [container], "volumes": volumes},
            },
        },
    }
    documents: list[dict[str, Any]] = [manifest]
    if server.files:
        documents.insert(
            0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(server.files)}
        )
    return str(yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=1000))


def _label(engine: str, model: str) -> str:
    """A DNS label out of an engine's and a model's name."""
    word = re.sub(r"[^a-z0-9]+", "-", f"{engine}-{model.rsplit('/', 1)[-1]}".lower()).strip("-")
    return word[:50].rstrip("-")
