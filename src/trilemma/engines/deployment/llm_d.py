"""A fleet on llm-d: engines that its router finds by labels, the sidecar of decode pods, and the router's own values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trilemma.engines.deployment.facts import facts, of_engine
from trilemma.engines.deployment.fleet import EngineGroup, Fleet
from trilemma.engines.deployment.kubernetes import check, comments, deployment, labels, name_of, set_of_nodes
from trilemma.engines.deployment.pods import engine_container, pod_spec, token, volumes, worker_pod
from trilemma.engines.deployment.yaml_text import yaml_text
from trilemma.errors import InputError

ROUTER_VALUES = "llm-d-router-values.yaml"


def files(fleet: Fleet, *, card: str | None = None) -> dict[str, str]:
    """File name → content: the engines (``llm-d-serve.yaml``, or one file for each pool) and values of the router's chart.

    Raises `InputError` for engines whose load the router cannot read, and as
    `trilemma.engines.deployment.kubernetes.manifests`.
    """
    check(fleet)
    if fleet.metrics is None:
        raise InputError(
            f"--to llm-d is written for vLLM and SGLang, whose load its router reads, and the plan is for {fleet.label};"
            " use --to kubernetes"
        )
    found = {
        f"llm-d-{group.role}.yaml": yaml_text([_engines(fleet, group)], comments=comments(fleet, group, card))
        for group in fleet.groups
    }
    return found | {ROUTER_VALUES: _router(fleet)}


def found_by(fleet: Fleet) -> dict[str, str]:
    """The labels by which llm-d's router finds this fleet's engines."""
    named = facts()["llm_d"]
    return {named["serving_label"]: "true", named["model_label"]: name_of(fleet)}


def with_token(container: Mapping[str, Any]) -> dict[str, Any]:
    """The container with the hub's token out of the Secret that llm-d's guides make."""
    others = [item for item in container["env"] if item["name"] != "HF_TOKEN"]
    return {**container, "env": [token(facts()["llm_d"]["token_secret"]), *others]}


def _engines(fleet: Fleet, group: EngineGroup) -> dict[str, Any]:
    """Engines of one node as a Deployment, over several as a LeaderWorkerSet whose leaders alone carry llm-d's labels."""
    named = facts()["llm_d"]
    name = f"{name_of(fleet)}-{group.role}" if fleet.apart else name_of(fleet)
    own = labels(name, group.role)
    role = {named["role_label"]: group.role} if fleet.apart else {}
    front = {"metadata": {"labels": {**own, **found_by(fleet), **role}}, "spec": _front(fleet, group)}
    if group.span is None:
        return deployment(group, name, own, front)
    behind = worker_pod(fleet, group, group.span, config=None)
    behind["containers"] = [with_token(container) for container in behind["containers"]]
    return set_of_nodes(group, name, own, front, {"metadata": {"labels": dict(own)}, "spec": behind})


def _front(fleet: Fleet, group: EngineGroup) -> dict[str, Any]:
    """The pod that the router sends requests to; one of decode has the sidecar before its engine."""
    named = facts()["llm_d"]
    behind = fleet.apart and group.role == "decode"
    told = replace(group, arguments=(*group.arguments, *(fleet.metrics or ())))
    container = engine_container(fleet, told, port=named["target_port" if behind else "service_port"])
    pod = pod_spec(with_token(container), volumes(fleet, group, config=None))
    return pod | ({"initContainers": [_sidecar(fleet)]} if behind else {})


def _sidecar(fleet: Fleet) -> dict[str, Any]:
    """Takes a request for decode, has the prefill engine that the router chose work first, then hands it on."""
    named = facts()["llm_d"]
    ports = (f"--port={named['service_port']}", f"--model-server-port={named['target_port']}")
    return {
        "name": "routing-proxy",
        "image": named["sidecar_image"],
        "args": [*ports, f"--kv-connector={of_engine(fleet.engine)['llm_d_connector']}", "--secure-proxy=false"],
        "ports": [{"name": "sidecar", "containerPort": named["service_port"]}],
        "restartPolicy": "Always",
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
    }


def _router(fleet: Fleet) -> str:
    """Values of the router's chart: which pods are its engines, and for pools apart how a request finds both."""
    named = facts()["llm_d"]
    servers: dict[str, Any] = {} if fleet.engine == named["default_server"] else {"type": fleet.engine}
    router: dict[str, Any] = {"modelServers": {**servers, "matchLabels": found_by(fleet)}}
    if fleet.apart:
        router["epp"] = {
            "replicas": 1,
            "pluginsConfigFile": "pd-config.yaml",
            "pluginsCustomConfig": {"pd-config.yaml": yaml_text([_picker(named)])},
        }
    release = f"{name_of(fleet)}-router"
    chart = f"{named['router_chart']} --version {named['router_chart_version']}"
    lines = [
        f"helm install {release} {chart} -f {ROUTER_VALUES}",
        "over llm-d's own guides/recipes/router/base.values.yaml",
        f"Requests go to the Service {release}-epp, port {named['router_port']}",
    ]
    return yaml_text([{"router": router}], comments=lines)


def _picker(named: Mapping[str, Any]) -> dict[str, Any]:
    """Every prompt goes to a prefill engine first; of each pool the engine with the least to do is taken."""
    plugins: list[dict[str, Any]] = [
        {"type": named["decider"]},
        {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": named["decider"]}}},
        *({"type": name} for name in named["plugins"]),
    ]
    profiles = [
        {"name": role, "plugins": [{"pluginRef": name} for name in chain]} for role, chain in named["profiles"].items()
    ]
    return {
        "apiVersion": named["picker_api"],
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
        "schedulingProfiles": profiles,
    }
