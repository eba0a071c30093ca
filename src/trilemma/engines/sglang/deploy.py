"""Files that start a plan on SGLang: a script, a configuration file, a container command, a Kubernetes deployment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from trilemma.engines.deployment import MAKERS, Server, docker_run, kubernetes, script
from trilemma.engines.sglang.flags import table
from trilemma.engines.sglang.read import VARIABLES
from trilemma.engines.sglang.write import settings, write
from trilemma.plans import Plan

_PORT = 30000
_IMAGE = {"nvidia": "lmsysorg/sglang"}


def deployment(*, model: str, plan: Plan, version: str | None, gpus: int, one_node: bool, maker: str) -> dict[str, str]:
    """File name → content; arguments as `trilemma.engines.vllm.deploy.deployment`."""
    release = plan.engine.version or version or ".".join(map(str, table().versions[-1]))
    plan = replace(plan, engine=replace(plan.engine, version=release))
    command = write(model=model, plan=plan)
    variables = {name: str(plan.pool.options.extra[name]) for name in VARIABLES if name in plan.pool.options.extra}
    if variables:
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
    head = command.index("--model-path") + 2
    files = {
        "serve.sh": script(command, label=f"SGLang {release}", head=head),
        "sglang.yaml": _configuration(model, plan),
    }
    if one_node and maker in MAKERS and maker in _IMAGE:
        words = [*command, "--host", "0.0.0.0", "--port", str(_PORT)]
        server = Server(
            engine="sglang",
            image=f"{_IMAGE[maker]}:v{release.removeprefix('v')}",
            words=words,
            port=_PORT,
            program=True,
        )
        files["docker-run.sh"] = docker_run(server, gpus=gpus, maker=maker)
        files["kubernetes.yaml"] = kubernetes(server, gpus=gpus, maker=maker, model=model)
    return files


def _configuration(model: str, plan: Plan) -> str:
    """For ``python3 -m sglang.launch_server --config sglang.yaml``: flags with hyphens, switches as true."""
    content: dict[str, Any] = {"model-path": model}
    for flag, value in settings(plan):
        content[flag.name] = list(value) if isinstance(value, tuple) else value
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000))
