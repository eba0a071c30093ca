"""Files that start a plan on llama.cpp: a script, a container command, a Kubernetes deployment."""

from __future__ import annotations

from trilemma.engines.deployment import Server, docker_run, kubernetes, script
from trilemma.engines.llama_cpp.write import write
from trilemma.plans import Plan

_PORT = 8080
_IMAGE = {"nvidia": "ghcr.io/ggml-org/llama.cpp:server-cuda", "amd": "ghcr.io/ggml-org/llama.cpp:server-rocm"}


def deployment(*, model: str, plan: Plan, version: str | None, gpus: int, one_node: bool, maker: str) -> dict[str, str]:
    """File name → content; arguments as `trilemma.engines.vllm.deploy.deployment`. Builds are tagged where the plan names one."""
    command = write(model=model, plan=plan)
    named = plan.engine.version
    label = named or f"facts of {version}" if version else "newest build"
    files = {"serve.sh": script(command, label=f"llama.cpp {label}", head=3)}
    if one_node and maker in _IMAGE:
        words = [*command[1:], "--host", "0.0.0.0", "--port", str(_PORT)]
        image = _IMAGE[maker] + (f"-{named}" if named else "")
        server = Server(engine="llama-cpp", image=image, words=words, port=_PORT)
        files["docker-run.sh"] = docker_run(server, gpus=gpus, maker=maker)
        files["kubernetes.yaml"] = kubernetes(server, gpus=gpus, maker=maker, model=model)
    return files
