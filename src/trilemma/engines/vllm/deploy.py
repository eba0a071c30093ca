"""Files that start a plan on vLLM: a script, a configuration file, a container command, a Kubernetes deployment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from trilemma.engines.flags import value_text
from trilemma.engines.versions import padded, parse_version
from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.write import arguments, settings, write
from trilemma.plans import Plan

_PORT = 8000
#: Maker of the card → (image repository, options of docker run, Kubernetes resource); docs/deployment of vLLM.
_MAKERS = {
    "nvidia": ("vllm/vllm-openai", ("--gpus", "{gpus}"), "nvidia.com/gpu"),
    "amd": (
        "vllm/vllm-openai-rocm",
        ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video", "--cap-add", "SYS_PTRACE",
         "--security-opt", "seccomp=unconfined"),
        "amd.com/gpu",
    ),
}  # fmt: skip
#: Shared memory of the container per GPU: ranks on one node exchange through it.
_SHM_GIB_PER_GPU = 2


def deployment(*, model: str, plan: Plan, version: str | None, gpus: int, one_node: bool, maker: str) -> dict[str, str]:
    """File name → content. ``version`` is used where the plan names none; ``gpus`` is the number the plan takes.

    Containers are written for plans on one node of a maker whose image is known, the others get script and configuration
    alone. Raises `InputError` for what `write` refuses; every flag exists in the version.
    """
    chosen = plan.engine.version or version
    release = chosen if chosen else ".".join(map(str, table().versions[-1]))
    plan = replace(plan, engine=replace(plan.engine, version=release))
    command = write(model=model, plan=plan)
    files = {"serve.sh": _script(command, release), "vllm.yaml": _configuration(model, plan)}
    if one_node and maker in _MAKERS:
        words = ["--model", model, *arguments(plan)]
        files["docker-run.sh"] = _container(words, release, gpus, maker)
        files["kubernetes.yaml"] = _kubernetes(words, release, gpus, maker, model)
    return files


def image(release: str, maker: str) -> str:
    """The public image of a release: ``vllm/vllm-openai:v0.19.0``."""
    exact = re.fullmatch(r"v?\d+\.\d+\.\d+(\.post\d+|rc\d+)?", release)
    tag = release.removeprefix("v") if exact else ".".join(map(str, padded(parse_version(release))))
    return f"{_MAKERS[maker][0]}:v{tag}"


def _script(command: Sequence[str], release: str) -> str:
    return f'#!/bin/sh\n# vLLM {release}\nset -eu\nexec {_lines(command[:3], command[3:])} \\\n  "$@"\n'


def _lines(head: Sequence[str], words: Sequence[str]) -> str:
    """One flag a line, quoted for the shell."""
    groups: list[list[str]] = [list(head)]
    for word in words:
        if word.startswith("-"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return " \\\n  ".join(shlex.join(group) for group in groups)


def _configuration(model: str, plan: Plan) -> str:
    """For ``vllm serve --config vllm.yaml``. Mappings are JSON texts and negations ``no-`` keys: all versions read these."""
    content: dict[str, Any] = {"model": model}
    for flag, value in settings(plan):
        if flag.kind in ("toggle", "switch"):
            content[flag.name if value else f"no-{flag.name}"] = True
        elif isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and flag.kind == "json"):
            content[flag.name] = value_text(value)
        else:
            content[flag.name] = list(value) if isinstance(value, tuple) else value
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000))


def _container(words: Sequence[str], release: str, gpus: int, maker: str) -> str:
    options = [word.format(gpus=gpus) for word in _MAKERS[maker][1]]
    head = ["docker", "run", "--rm", "--ipc=host", "-p", f"{_PORT}:{_PORT}"]
    quoted = " ".join(
        (shlex.join([*head, *options]), '-v "$HOME/.cache/huggingface:/root/.cache/huggingface"', "-e HF_TOKEN")
    )
    return f'#!/bin/sh\nset -eu\nexec {quoted} \\\n  {_lines([image(release, maker)], words)} \\\n  "$@"\n'


def _kubernetes(words: Sequence[str], release: str, gpus: int, maker: str, model: str) -> str:
    name = _label(model)
    resources = {_MAKERS[maker][2]: str(gpus)}
    container = {
        "name": "vllm",
        "image": image(release, maker),
        "args": list(words),
        "ports": [{"containerPort": _PORT}],
        "env": [
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}
        ],
        "readinessProbe": {"httpGet": {"path": "/health", "port": _PORT}, "periodSeconds": 10, "failureThreshold": 360},
        "resources": {"limits": resources, "requests": dict(resources)},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_SHM_GIB_PER_GPU * gpus}Gi"}}
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
                "spec": {"containers": [container], "volumes": [volume]},
            },
        },
    }
    return str(yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=1000))


def _label(model: str) -> str:
    """A DNS label out of a model's name."""
    word = re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")
    return f"vllm-{word}"[:50].rstrip("-")
