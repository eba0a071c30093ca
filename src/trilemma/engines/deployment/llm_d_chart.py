"""Values of ``llm-d-modelservice``, the chart by which llm-d made engines' objects before 0.7."""

from __future__ import annotations

from typing import Any

from trilemma.engines.deployment.facts import facts
from trilemma.engines.deployment.fleet import EngineGroup, Fleet
from trilemma.engines.deployment.kubernetes import name_of
from trilemma.engines.deployment.llm_d import found_by, with_token
from trilemma.engines.deployment.pods import engine_container, volumes
from trilemma.engines.deployment.yaml_text import yaml_text

VALUES = "llm-d-values.yaml"


def values(fleet: Fleet) -> dict[str, str]:
    """File name → content; none for engines other than vLLM, and none over several nodes.

    The chart probes the pods of other nodes as if they answered requests. Pods of its role ``decode`` also serve plans of
    one pool, without its sidecar.
    """
    if fleet.engine != "vllm" or any(group.nodes > 1 for group in fleet.groups):
        return {}
    named = facts()["llm_d"]
    found = {group.role: group for group in fleet.groups}
    proxy: dict[str, Any] = {"enabled": fleet.apart}
    if fleet.apart:
        proxy["targetPort"] = named["target_port"]
    content = {
        # No container mounts the chart's volume of the model (mountModelVolume), which is all that it makes of the uri.
        "modelArtifacts": {"name": fleet.model, "uri": f"hf://{fleet.model.lstrip('/')}", "labels": found_by(fleet)},
        "multinode": False,
        "accelerator": {"type": fleet.maker},
        "routing": {"servicePort": named["service_port"], "proxy": proxy},
        "decode": _role(fleet, found.get("decode") or found["serve"]),
        "prefill": _role(fleet, found["prefill"]) if fleet.apart else {"create": False},
    }
    instead = " and ".join(f"llm-d-{role}.yaml" for role in found)
    comments = [
        f"{fleet.label} by llm-d's chart, instead of {instead}: helm repo add llm-d {named['chart_repository']}",
        f"helm install {name_of(fleet)} llm-d/{named['chart']} -f {VALUES}",
        f"Keys as in chart {named['chart_versions']}; the chart is {named['chart_status']}",
    ]
    return {VALUES: yaml_text([content], comments=comments)}


def _role(fleet: Fleet, group: EngineGroup) -> dict[str, Any]:
    """Replicas of one role; the container's words are the plan's own command, so that the chart adds none."""
    named = facts()["llm_d"]
    port = named["target_port" if group.role == "decode" else "service_port"]
    container = with_token(engine_container(fleet, group, port=port))
    kept = ("image", "command", "args", "env", "ports", "resources", "volumeMounts")
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    return {
        "create": True,
        "replicas": group.replicas,
        # The chart counts cards as tensor x dataLocal; those of the container's resources hold.
        "parallelism": {"tensor": group.gpus_per_node, "data": 1, "dataLocal": 1, "workers": 1},
        "containers": [
            {
                "name": "vllm",
                "modelCommand": "custom",
                "mountModelVolume": False,
                **{key: container[key] for key in (*kept, *probes)},
            }
        ],
        "volumes": volumes(fleet, group, config=None),
    }
