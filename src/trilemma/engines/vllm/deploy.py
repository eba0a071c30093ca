"""Files that start a plan on vLLM: a script, a configuration file, a container command, a Kubernetes deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from trilemma.engines.deployment import Server, docker_run, kubernetes, script
from trilemma.engines.flags import value_text
from trilemma.engines.versions import padded, parse_version
from trilemma.engines.vllm.flags import table
from trilemma.engines.vllm.write import arguments, settings, write
from trilemma.plans import Plan

_PORT = 8000
#: Maker of the card → image repository; docs/deployment of vLLM.
_IMAGES = {"nvidia": "vllm/vllm-openai", "amd": "vllm/vllm-openai-rocm"}


def deployment(*, model: str, plan: Plan, version: str | None, gpus: int, one_node: bool, maker: str) -> dict[str, str]:
    """File name → content. ``version`` is used where the plan names none; ``gpus`` is the number the plan takes.

    Containers are written for plans on one node of a maker whose image is known, the others get script and configuration
    alone. Raises `InputError` for what `write` refuses; every flag exists in the version.
    """
    chosen = plan.engine.version or version
    release = chosen if chosen else ".".join(map(str, table().versions[-1]))
    plan = replace(plan, engine=replace(plan.engine, version=release))
    command = write(model=model, plan=plan)
    files = {"serve.sh": script(command, label=f"vLLM {release}", head=3), "vllm.yaml": _configuration(model, plan)}
    if one_node and maker in _IMAGES:
        words = ["--model", model, *arguments(plan)]
        server = Server(engine="vllm", image=image(release, maker), words=words, port=_PORT)
        files["docker-run.sh"] = docker_run(server, gpus=gpus, maker=maker)
        files["kubernetes.yaml"] = kubernetes(server, gpus=gpus, maker=maker, model=model)
    return files


def image(release: str, maker: str) -> str:
    """The public image of a release: ``vllm/vllm-openai:v0.19.0``."""
    exact = re.fullmatch(r"v?\d+\.\d+\.\d+(\.post\d+|rc\d+)?", release)
    tag = release.removeprefix("v") if exact else ".".join(map(str, padded(parse_version(release))))
    return f"{_IMAGES[maker]}:v{tag}"


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
