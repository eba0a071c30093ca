"""Kubernetes objects that name each other: whatever an exported object refers to is there, and nothing is there unreferred to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from fleets import PLANS, containers, served

from trilemma.engines import deployer
from trilemma.engines.deployment import Fleet, kubernetes, llm_d
from trilemma.plans import Plan

Objects = list[dict[str, Any]]
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")


def fleet_of(plan: Plan, model: str = "/models/org GGUF") -> Fleet:
    return deployer(plan.engine.name)(model=model, plan=plan, version=None, maker="nvidia", per_node=8)


def objects(files: Mapping[str, str]) -> Objects:
    found = [one for name, text in files.items() if name != llm_d.ROUTER_VALUES for one in yaml.safe_load_all(text)]
    return [one for one in found if one]


def written(plan: Plan) -> Objects:
    return objects(kubernetes.manifests(fleet_of(plan)))


def pods(documents: Objects) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind, template, _ in containers(documents):
        yield kind, template["spec"]


def named(documents: Objects, kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def words_of(container: Mapping[str, Any]) -> list[str]:
    return [*container.get("command", []), *container.get("args", [])]


@pytest.fixture(params=list(PLANS))
def plan(request: pytest.FixtureRequest) -> Plan:
    return PLANS[request.param]


def test_every_volume_is_mounted_and_every_mount_has_a_volume(plan: Plan) -> None:
    for one in (written(plan), llm_d_objects(plan)):
        for _, pod in pods(one):
            mounts = {mount["name"] for box in pod["containers"] for mount in box.get("volumeMounts", [])}
            assert mounts == {volume["name"] for volume in pod.get("volumes", [])}


def llm_d_objects(plan: Plan) -> Objects:
    fleet = fleet_of(plan)
    return objects(llm_d.files(fleet)) if fleet.metrics is not None else []


def test_every_config_map_is_mounted_and_every_mount_has_a_config_map(plan: Plan) -> None:
    documents = written(plan)
    maps = named(documents, "ConfigMap")
    asked = {
        volume["configMap"]["name"]
        for _, pod in pods(documents) for volume in pod.get("volumes", []) if "configMap" in volume
    }  # fmt: skip
    assert asked == set(maps)
    assert all(one["data"] for one in maps.values())


def test_files_that_commands_name_are_in_the_config_map(plan: Plan) -> None:
    documents = written(plan)
    maps = named(documents, "ConfigMap")
    seen = set()
    for _, pod in pods(documents):
        (box,) = pod["containers"]
        files = {word.rpartition("/config/")[2] for word in words_of(box) if "/config/" in word}
        name = next((one["configMap"]["name"] for one in pod.get("volumes", []) if "configMap" in one), None)
        assert files == (set(maps[name]["data"]) if name else set())
        seen |= {name} - {None}
    assert seen == set(maps)


def test_a_plan_with_files_has_a_config_map_and_one_without_has_none() -> None:
    assert set(named(written(PLANS["files"]), "ConfigMap")) == {"tensorrt-llm-org-gguf"}
    assert not named(written(PLANS["one"]), "ConfigMap")


def test_services_select_pods_and_name_their_ports(plan: Plan) -> None:
    documents = written(plan)
    templates = [(template["metadata"]["labels"], template["spec"]) for _, template, _ in containers(documents)]
    for service in named(documents, "Service").values():
        selector = {name: value for name, value in service["spec"]["selector"].items() if "worker-index" not in name}
        chosen = [pod for labels, pod in templates if selector.items() <= labels.items()]
        assert chosen
        ports = {port["name"] for box in chosen[0]["containers"] for port in box.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_clients_reach_the_leader_alone(plan: Plan) -> None:
    documents = written(plan)
    for service in named(documents, "Service").values():
        indexed = [value for name, value in service["spec"]["selector"].items() if "worker-index" in name]
        sets = [one for one in documents if one["kind"] == "LeaderWorkerSet"]
        wide = bool(sets) and not any(one["kind"] in ("Deployment", "StatefulSet") for one in documents)
        assert indexed == (["0"] if wide else [])


def test_workloads_select_their_own_pods_and_names_are_not_taken_twice(plan: Plan) -> None:
    documents = written(plan)
    for one in documents:
        if one["kind"] in ("Deployment", "StatefulSet"):
            assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
        if one["kind"] == "StatefulSet":
            assert one["spec"]["serviceName"] in named(documents, "Service")
    # A LeaderWorkerSet makes a headless Service of its own name.
    assert not set(named(documents, "LeaderWorkerSet")) & set(named(documents, "Service"))
    every = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(every) == len(set(every))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("target", ["kubernetes", "llm-d"])
def test_cards_of_all_pods_are_those_of_the_plan(name: str, target: str) -> None:
    plan = PLANS[name]
    documents = written(plan) if target == "kubernetes" else llm_d_objects(plan)
    cards = 0
    for one in documents:
        if one["kind"] not in WORKLOADS:
            continue
        size = one["spec"].get("leaderWorkerTemplate", {}).get("size", 1)
        (box, *_) = [box for kind, _, box in containers([one]) if kind == one["kind"]]
        limits = box.get("resources", {}).get("limits", {})
        cards += one["spec"]["replicas"] * size * int(limits.get("nvidia.com/gpu", 0))
    assert cards == (int(plan.gpus) if documents else 0)


def test_leader_and_workers_ask_for_the_same_cards_and_image(plan: Plan) -> None:
    for one in named(written(plan), "LeaderWorkerSet").values():
        leader, worker = (box for _, _, box in containers([one]))
        assert leader["resources"] == worker["resources"]
        assert leader["image"] == worker["image"]
        assert leader["volumeMounts"] == worker["volumeMounts"]


def test_the_port_that_an_engine_listens_on_is_that_of_its_container(plan: Plan) -> None:
    documents = written(plan)
    workers = {
        id(one["spec"]["leaderWorkerTemplate"]["workerTemplate"])
        for one in documents
        if one["kind"] == "LeaderWorkerSet"
    }
    for _, template, box in containers(documents):
        if id(template) in workers:
            assert "ports" not in box
            assert "readinessProbe" not in box
            continue
        port = next(one["containerPort"] for one in box["ports"] if one["name"] == "http")
        words = words_of(box)
        given = [words[at + 1] for at, word in enumerate(words) if word == "--port"]
        given += re.findall(r"--port[= ](\d+)", " ".join(words))
        assert str(port) in given or box["name"] == "router"
        assert box["readinessProbe"]["httpGet"]["port"] == "http"


def test_ray_heads_and_those_that_join_them() -> None:
    # vLLM 0.10 spreads a replica over nodes by Ray; newer releases and other engines start a process on each node.
    (one,) = named(written(PLANS["ray"]), "LeaderWorkerSet").values()
    leader, worker = (box for _, _, box in containers([one]))
    head, join = " ".join(leader["command"]), " ".join(worker["command"])
    port = re.search(r"ray start --head --port=(\d+) && exec", head)
    assert port is not None
    assert f'exec ray start --address="$$LWS_LEADER_ADDRESS:{port.group(1)}" --block' in join
    assert leader["args"][:2] == ["vllm", "serve"]
    assert "args" not in worker
    for name, plan in PLANS.items():
        for _, _, box in containers(written(plan)):
            assert ("ray start" in " ".join(words_of(box))) == (name == "ray"), name


def test_nodes_of_one_engine_know_their_number_and_their_leader() -> None:
    (one,) = named(written(PLANS["nodes"]), "LeaderWorkerSet").values()
    assert one["spec"]["leaderWorkerTemplate"]["size"] == 2
    leader, worker = (words_of(box) for _, _, box in containers([one]))
    for words, rank in ((leader, "0"), (worker, "$(LWS_WORKER_INDEX)")):
        assert words[words.index("--node-rank") + 1] == rank
        assert words[words.index("--nnodes") + 1] == "2"
        assert words[words.index("--master-addr") + 1] == "$(LWS_LEADER_ADDRESS)"


@pytest.mark.parametrize("name", ["vllm pools", "sglang pools over nodes", "tensorrt-llm pools"])
def test_routers_name_every_engine_by_its_place_in_dns(name: str) -> None:
    plan = PLANS[name]
    documents = written(plan)
    router = next(box for _, _, box in containers(documents) if box["name"] == "router")
    text = " ".join(words_of(router)) + "".join(
        content for one in named(documents, "ConfigMap").values() for content in one["data"].values()
    )
    services = {
        **{one["metadata"]["name"]: one["spec"]["serviceName"] for one in documents if one["kind"] == "StatefulSet"},
        **{one["metadata"]["name"]: one["metadata"]["name"] for one in documents if one["kind"] == "LeaderWorkerSet"},
    }
    told = set(re.findall(r"([a-z0-9-]+\.[a-z0-9-]+):\d+", text))
    expected = {
        f"{one['metadata']['name']}-{number}.{services[one['metadata']['name']]}"
        for one in documents if one["kind"] in ("StatefulSet", "LeaderWorkerSet")
        for number in range(one["spec"]["replicas"])
    }  # fmt: skip
    assert told == expected


@pytest.mark.parametrize("target", ["kubernetes", "llm-d"])
def test_weights_on_the_node_are_mounted_and_a_hub_id_is_not(target: str) -> None:
    for model, mounted in (("/models/own", True), ("org/model", False)):
        fleet = fleet_of(served(tp=2), model)
        documents = objects(kubernetes.manifests(fleet) if target == "kubernetes" else llm_d.files(fleet))
        for _, pod in pods(documents):
            paths = [one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one]
            assert paths == (["/models/own"] if mounted else [])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("one", "1 engine of 2 GPUs"),
        ("replicas", "3 engines of 2 GPUs"),
        ("nodes", "1 engine of 2 nodes x 8 GPUs"),
        ("attention apart", "2 engines of 2 nodes x 8 GPUs"),
    ],
)
def test_files_say_the_shape_above_their_objects(name: str, shape: str) -> None:
    text = kubernetes.manifests(fleet_of(PLANS[name]), card="nvidia-h200")["kubernetes.yaml"]
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert head[0].endswith(f": {shape}")
    assert "# Planned for nvidia-h200: select its nodes where the cluster has other cards too" in head
    assert any("LeaderWorkerSet" in line for line in head) == ("nodes" in shape)
