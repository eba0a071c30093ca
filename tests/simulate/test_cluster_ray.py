"""Ray's nodes, placement groups and jobs, its launcher's YAML and objects of KubeRay, simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma.errors import InputError
from trilemma.simulation.cluster.nodes import ClusterNode
from trilemma.simulation.cluster.ray_rows import kube_job, kube_nodes

#: Fields of `ray list nodes --format json` (python/ray/util/state/common.py, NodeState).
_NODES = [
    {
        "node_id": f"{at:056x}", "node_ip": f"10.0.0.{at}", "is_head_node": at == 0, "state": "ALIVE" if at < 3 else "DEAD",
        "state_message": None, "node_name": f"10.0.0.{at}", "labels": {},
        "resources_total": {"GPU": 8.0, "CPU": 96.0, "accelerator_type:H100": 1.0, f"node:10.0.0.{at}": 1.0, "memory": 1e12},
    }
    for at in range(4)
]  # fmt: skip
#: PlacementGroupState with --detail: a gang of 16 GPUs, one that waits, one that is gone.
_GROUPS = [
    {"placement_group_id": "a", "name": "train", "state": "CREATED", "bundles": [{"unit_resources": {"GPU": 8.0}}] * 2},
    {"placement_group_id": "b", "name": "", "state": "PENDING", "bundles": [{"unit_resources": {"GPU": 4.0, "CPU": 8.0}}]},
    {"placement_group_id": "c", "name": "old", "state": "REMOVED", "bundles": [{"unit_resources": {"GPU": 8.0}}]},
]  # fmt: skip
_JOBS = [
    {
        "type": "SUBMISSION", "job_id": None, "submission_id": f"raysubmit_{at}", "status": "SUCCEEDED",
        "entrypoint": "python t.py",
        "entrypoint_num_gpus": 8, "start_time": 1_700_000_000_000 + at * 60_000, "end_time": 1_700_000_600_000 + at * 60_000,
        "driver_info": None, "metadata": {},
    }
    for at in range(4)
]  # fmt: skip
_LAUNCHER = """
cluster_name: one
max_workers: 3
head_node_type: head
available_node_types:
  head: {resources: {CPU: 8}, min_workers: 0, max_workers: 0}
  gpu: {resources: {CPU: 96, GPU: 8, "accelerator_type:A100": 1}, min_workers: 1, max_workers: 3}
"""
_KUBERAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: serve}
spec:
  headGroupSpec: {template: {spec: {containers: [{name: h, resources: {limits: {cpu: "8"}}}]}}}
  workerGroupSpecs:
  - groupName: h100
    replicas: 3
    numOfHosts: 2
    template: {spec: {containers: [{name: w, resources: {limits: {nvidia.com/gpu: "8"}}}]}}
---
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: tune, creationTimestamp: "2026-11-01T00:00:00Z", labels: {kueue.x-k8s.io/queue-name: research}}
spec:
  entrypoint: python tune.py
  rayClusterSpec:
    workerGroupSpecs:
    - {groupName: w, replicas: 2, template: {spec: {containers: [{name: w, resources: {limits: {nvidia.com/gpu: 8}}}]}}}
status: {jobStatus: SUCCEEDED, startTime: "2026-11-01T00:05:00Z", endTime: "2026-11-01T01:05:00Z"}
"""


def _written(folder: Path, name: str, content: Any) -> str:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder / name)


def test_nodes_and_jobs_as_ray_lists_them(tmp_path: Path) -> None:
    """Three of four nodes are alive; four jobs of eight GPUs, ten minutes each, a minute apart, on three nodes: one waits."""
    nodes, jobs = _written(tmp_path, "nodes.json", _NODES), _written(tmp_path, "jobs.json", _JOBS)
    found = tl.simulate_cluster(nodes, jobs).to_dict()
    assert found["inputs"]["gpus"] == 24
    assert found["jobs"] == found["completed"] == 4
    assert found["gpu_hours"]["useful"] == pytest.approx(4 * 8 / 6)
    assert found["waits_s"]["all"]["mean"] == pytest.approx(
        7 * 60 / 4
    )  # the fourth comes in minute 3, the first ends in 10


def test_placement_groups_are_gangs(tmp_path: Path) -> None:
    nodes, groups = _written(tmp_path, "nodes.json", _NODES), _written(tmp_path, "groups.json", _GROUPS)
    found = tl.simulate_cluster(nodes, groups).to_dict()
    assert found["jobs"] == 2


def test_the_launchers_yaml_and_objects_of_kuberay(tmp_path: Path) -> None:
    jobs = _written(tmp_path, "jobs.json", _JOBS)
    launched = tl.simulate_cluster(_written(tmp_path, "cluster.yaml", _LAUNCHER), jobs).to_dict()
    assert launched["inputs"]["gpus"] == 24
    kube = _written(tmp_path, "kuberay.yaml", _KUBERAY)
    found = tl.simulate_cluster(kube, kube).to_dict()
    assert found["inputs"]["gpus"] == 48
    assert found["gpu_hours"]["useful"] == pytest.approx(16)


def test_pods_of_a_job_are_counted_not_made(tmp_path: Path) -> None:
    """A RayJob that asks for 50 groups of a billion pods of 8 GPUs is refused for what it asks, in no time and no memory."""
    group = {
        "groupName": "w",
        "replicas": 1_000_000_000,
        "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}}]}},
    }
    job = {
        "kind": "RayJob", "metadata": {"name": "huge", "creationTimestamp": "2026-11-01T00:00:00Z"},
        "spec": {"rayClusterSpec": {"workerGroupSpecs": [group] * 50}},
    }  # fmt: skip
    asked = kube_job(job)
    assert (asked["gpus"], asked["pods"]) == (400_000_000_000, 50_000_000_000)
    with pytest.raises(
        InputError, match="job huge asks for 50000000000 x 8 GPUs, more than the whole cluster can place"
    ) as told:
        tl.simulate_cluster("4x8", _written(tmp_path, "jobs.json", [job]))
    assert "\n" not in str(told.value)


def test_names_of_many_pods_stay_short() -> None:
    """2,000 pods of a group whose name is a million letters are not two gigabytes of names, nor is an error one of them."""
    group = {
        "groupName": "y" * 1_000_000,
        "replicas": 2000,
        "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}}]}},
    }
    cluster = {"kind": "RayCluster", "metadata": {"name": "z" * 1_000_000}, "spec": {"workerGroupSpecs": [group]}}
    assert max(len(row["name"]) for row in kube_nodes(cluster)) < 200
    with pytest.raises(InputError, match="GPUs; give 0 to") as told:
        ClusterNode(name="z" * 1_000_000, gpus=2000)
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("jobs.json", [{**_JOBS[0], "entrypoint_num_gpus": None}], "placement-groups"),
        ("jobs.json", [{**_JOBS[0], "entrypoint_num_gpus": -8}], "placement-groups"),
        ("jobs.json", [{**_JOBS[0], "entrypoint_num_gpus": 1e30}], "placement-groups"),
        ("nodes.json", [{"node_id": "a", "resources_total": {"GPU": "many"}}], "GPU"),
        ("nodes.json", [{"node_id": "a", "resources_total": []}], "node"),
        ("cluster.yaml", "available_node_types: {a: {}}", "node"),
        ("cluster.yaml", "available_node_types: {a: {resources: {GPU: 8}, max_workers: 999999999}}", "200,000"),
        ("kuberay.yaml", _KUBERAY.replace("replicas: 3", "replicas: 999999999"), "200,000"),
    ],
)  # fmt: skip
def test_what_cannot_be_ends_in_one_line(name: str, content: Any, words: str, tmp_path: Path) -> None:
    path = _written(tmp_path, name, content)
    nodes, jobs = ("4x8", path) if "jobs" in name else (path, "philly:5")
    with pytest.raises(InputError, match=words) as told:
        tl.simulate_cluster(nodes, jobs)
    assert "\n" not in str(told.value)
