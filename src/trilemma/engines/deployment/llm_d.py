"""Values files of llm-d: its chart for model servers, and its router's chart that finds them by their labels."""

from __future__ import annotations

from typing import Any

from trilemma.engines.deployment.facts import facts
from trilemma.engines.deployment.fleet import Fleet, Group
from trilemma.engines.deployment.kubernetes import check, name_of
from trilemma.engines.deployment.pods import engine_container, token, volumes
from trilemma.engines.deployment.yaml_text import yaml_text
from trilemma.errors import InputError

VALUES, ROUTER_VALUES = "llm-d-values.yaml", "llm-d-router-values.yaml"


def values(fleet: Fleet) -> dict[str, str]:
    """File name → content. Raises `InputError` for engines other than vLLM and for engines of several nodes.

    Pods of the chart's role ``decode`` also serve plans of one pool, without its sidecar.
    """
    if fleet.engine != "vllm":
        raise InputError(f"--to llm-d is written for vLLM, and the plan is for {fleet.label}; use --to kubernetes")
    check(fleet)
    if any(group.nodes > 1 for group in fleet.groups):
        raise InputError(
            "--to llm-d writes engines of one node: the chart probes the pods of other nodes as if they answered requests;"
            " use --to kubernetes"
        )
    named = facts()["llm_d"]
    own = _labels(fleet)
    found = {group.role: group for group in fleet.groups}
    proxy: dict[str, Any] = {"enabled": fleet.apart}
    if fleet.apart:
        proxy["targetPort"] = named["target_port"]
    content = {
        "modelArtifacts": {"name": fleet.model, "uri": f"hf://{fleet.model}", "labels": own},
        "multinode": False,
        "accelerator": {"type": fleet.maker},
        "routing": {"servicePort": named["service_port"], "proxy": proxy},
        "decode": _role(fleet, found.get("decode") or found["serve"]),
        "prefill": _role(fleet, found["prefill"]) if fleet.apart else {"create": False},
    }
    comments = [
        f"{fleet.label} on llm-d: helm repo add llm-d {named['chart_repository']}",
        f"helm install {name_of(fleet)} llm-d/{named['chart']} -f {VALUES}",
        f"Keys as in chart {named['chart_versions']}; the chart is {named['chart_status']}",
    ]
    return {VALUES: yaml_text([content], comments=comments), ROUTER_VALUES: _router(fleet)}


def _labels(fleet: Fleet) -> dict[str, str]:
    named = facts()["llm_d"]
    return {named["serving_label"]: "true", named["model_label"]: name_of(fleet)}


def _role(fleet: Fleet, group: Group) -> dict[str, Any]:
    """Replicas of one role; the container's words are the plan's own command, so that the chart adds none."""
    named = facts()["llm_d"]
    behind = group.role == "decode"
    container = engine_container(fleet, group, port=named["target_port" if behind else "service_port"])
    environment = [item for item in container["env"] if item["name"] != "HF_TOKEN"]
    probes = {key: container[key] for key in ("startupProbe", "readinessProbe", "livenessProbe")}
    return {
        "create": True,
        "replicas": group.replicas,
        # The chart counts cards as tensor x dataLocal; those of the container's resources hold.
        "parallelism": {"tensor": group.gpus_per_node, "data": 1, "dataLocal": 1, "workers": 1},
        "containers": [
            {
                "name": "vllm",
                "image": container["image"],
                "modelCommand": "custom",
                "command": container["command"],
                "args": container["args"],
                "env": [token(named["token_secret"]), *environment],
                "ports": container["ports"],
                "resources": container["resources"],
                "mountModelVolume": False,
                "volumeMounts": container["volumeMounts"],
                **probes,
            }
        ],
        "volumes": volumes(fleet, group, config=None),
    }


def _router(fleet: Fleet) -> str:
    """Values of the router's chart: which pods are its engines, and for pools apart how a request finds both."""
    named = facts()["llm_d"]
    router: dict[str, Any] = {"modelServers": {"matchLabels": _labels(fleet)}}
    if fleet.apart:
        plugins: list[dict[str, Any]] = [
            {"type": named["decider"]},
            {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": named["decider"]}}},
            *({"type": name} for name in named["plugins"]),
        ]
        profiles = [
            {"name": role, "plugins": [{"pluginRef": name} for name in chain]}
            for role, chain in named["profiles"].items()
        ]
        picker = {
            "apiVersion": named["picker_api"],
            "kind": "EndpointPickerConfig",
            "plugins": plugins,
            "schedulingProfiles": profiles,
        }
        router["epp"] = {
            "replicas": 1,
            "pluginsConfigFile": "pd-config.yaml",
            "pluginsCustomConfig": {"pd-config.yaml": yaml_text([picker])},
        }
    chart = f"{named['router_chart']} --version {named['router_chart_version']}"
    comments = [
        f"helm install {name_of(fleet)}-router {chart} -f {ROUTER_VALUES}",
        "over llm-d's own guides/recipes/router/base.values.yaml",
    ]
    return yaml_text([{"router": router}], comments=comments)
