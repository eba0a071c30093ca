"""Files that start a plan on TensorRT-LLM: a script, the YAML of its options, a container command, a Kubernetes deployment."""

from __future__ import annotations

from dataclasses import replace

import yaml

from trilemma.engines.deployment import Server, docker_run, kubernetes, script
from trilemma.engines.tensorrt_llm.flags import table
from trilemma.engines.tensorrt_llm.write import YAML, write, yaml_options
from trilemma.plans import Plan

_PORT = 8000
_IMAGE = "nvcr.io/nvidia/tensorrt-llm/release"


def deployment(*, model: str, plan: Plan, version: str | None, gpus: int, one_node: bool, maker: str) -> dict[str, str]:
    """File name → content; arguments as `trilemma.engines.vllm.deploy.deployment`. Containers for NVIDIA cards only."""
    release = plan.engine.version or version or ".".join(map(str, table().versions[-1]))
    plan = replace(plan, engine=replace(plan.engine, version=release))
    command = write(model=model, plan=plan)
    options = yaml_options(plan)
    files = {}
    if options:
        files[YAML] = str(yaml.safe_dump(options, sort_keys=False, allow_unicode=True, width=1000))
    files["serve.sh"] = script(command, label=f"TensorRT-LLM {release}", head=2, beside_files=bool(options))
    if one_node and maker == "nvidia":
        words = [f"/config/{YAML}" if word == YAML else word for word in command]
        words += ["--host", "0.0.0.0", "--port", str(_PORT)]
        server = Server(
            engine="tensorrt-llm", image=f"{_IMAGE}:{release.removeprefix('v')}", words=words, port=_PORT, program=True,
            files={YAML: files[YAML]} if options else None,
        )  # fmt: skip
        files["docker-run.sh"] = docker_run(server, gpus=gpus, maker=maker)
        files["kubernetes.yaml"] = kubernetes(server, gpus=gpus, maker=maker, model=model)
    return files
