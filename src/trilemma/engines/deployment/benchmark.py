"""The benchmark of an exported plan: on the machine itself, or as a Job beside the engines on Kubernetes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from trilemma.engines.deployment.facts import facts
from trilemma.engines.deployment.fleet import Fleet
from trilemma.engines.deployment.kubernetes import labels, name_of
from trilemma.engines.deployment.pods import escaped, pod_spec, token
from trilemma.engines.deployment.yaml_text import yaml_text

JOB = "kubernetes-benchmark.yaml"
_MARK = "===results==="
#: Engines whose image holds the bench that they are measured with.
_BENCH_INSIDE = ("vllm", "sglang")


def local(words: Sequence[str], *, results: str, through_gateway: bool = False) -> dict[str, str]:
    """``benchmark.sh`` beside the engines, or through a gateway whose address the variable BASE_URL holds."""
    address = ""
    if through_gateway:
        address = ' --base-url "${BASE_URL:?address of the router or gateway, such as http://localhost:8081}"'
    command = f'exec {shlex.join(words)}{address} "$@"'
    return {"benchmark.sh": f"#!/bin/sh\n# then: trilemma settle {results}\nset -eu\n{command}\n"}


def on_kubernetes(fleet: Fleet, words: Sequence[str], *, results: str) -> dict[str, str]:
    """The benchmark against the fleet's Service: a Job of the engine's own image where that holds its bench, else from here."""
    if fleet.engine in _BENCH_INSIDE:
        return _job(fleet, words, results=results)
    name = name_of(fleet)
    script = (
        f"#!/bin/sh\n# then: trilemma settle {results}\nset -eu\n"
        f'kubectl port-forward service/{name} {fleet.port}:{fleet.port} "$@" &\n'
        'forward=$!\ntrap \'kill "$forward"\' EXIT\nsleep "${WAIT_S:-5}"\n'
        f"{shlex.join(words)}\n"
    )
    return {"benchmark.sh": script}


def _job(fleet: Fleet, words: Sequence[str], *, results: str) -> dict[str, str]:
    """The Job prints its results after its own output; the script runs it and cuts them out of its log."""
    name = f"{name_of(fleet)}-bench"
    own = labels(name, "benchmark")
    script = f'"$@" --base-url http://{name_of(fleet)}:{fleet.port} && echo && echo {_MARK} && cat {results}'
    container: dict[str, Any] = {
        "name": "benchmark",
        "image": fleet.image,
        "workingDir": "/tmp",
        "command": ["/bin/sh", "-c", *escaped([script]), "sh"],
        "args": escaped(words),
        "env": [token(facts()["kubernetes"]["token_secret"])],
        "resources": {"requests": {"cpu": "4", "memory": "8Gi"}},
    }
    mounted: list[dict[str, Any]] = []
    if fleet.weights.startswith("/"):
        container["volumeMounts"] = [{"name": "model", "mountPath": fleet.weights, "readOnly": True}]
        mounted.append({"name": "model", "hostPath": {"path": fleet.weights}})
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": own},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": dict(own)},
                "spec": {"restartPolicy": "Never", **pod_spec(container, mounted)},
            },
        },
    }
    comments = [f"Loads the service {name_of(fleet)}; benchmark.sh runs it and takes its results"]
    return {JOB: yaml_text([job], comments=comments), "benchmark.sh": _collecting(name, results)}


def _collecting(name: str, results: str) -> str:
    """Options such as ``-n NAMESPACE`` go to every kubectl."""
    done = shlex.quote("jsonpath={.status.succeeded}{.status.failed}")
    return (
        f"#!/bin/sh\n# then: trilemma settle {results}\nset -eu\n"
        'cd "$(dirname "$0")"\n'
        f'kubectl delete job {name} --ignore-not-found "$@"\n'
        f'kubectl apply -f {JOB} "$@"\n'
        f'until [ -n "$(kubectl get job {name} -o {done} "$@")" ]; do sleep "${{POLL_S:-10}}"; done\n'
        f'kubectl logs job/{name} "$@" > benchmark.log\n'
        f"sed '1,/^{_MARK}$/d' benchmark.log > {results}\n"
        f"[ -s {results} ] || {{ tail -n 20 benchmark.log >&2; exit 1; }}\n"
    )
