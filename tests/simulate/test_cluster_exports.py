"""A cluster written for a scheduler and read again is the same cluster; fields are those of each scheduler's own definitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import trilemma as tl
from trilemma.errors import InputError
from trilemma.simulation.cluster.kubernetes_objects import (
    kai_objects,
    kueue_objects,
    node_objects,
    volcano_objects,
    written,
)
from trilemma.simulation.cluster.nodes import ClusterNode
from trilemma.simulation.cluster.quotas import QueueQuota
from trilemma.simulation.cluster.slurm_topology import (
    read_reservations,
    reservations,
    topology_conf,
    topology_yaml,
    with_topology,
)
from trilemma.simulation.cluster.tables import read_nodes, read_queues

NODES = [
    ClusterNode(name=f"n{at:02}", gpus=4, model="GB200", cpu_milli=144_000, memory_mib=900_000, nvlink=f"d{at // 3}",
                rack=f"r{at // 6}", block=f"b{at // 12}", is_down=at == 5)
    for at in range(24)
]  # fmt: skip
QUEUES = [
    QueueQuota(name="all", is_cohort=True),
    QueueQuota(name="research", parent="all", nominal=32_000, borrowing=16_000, lending=8_000, weight=2.0, reclaim="any",
               within="lower-priority"),
    QueueQuota(name="prod", parent="all", nominal=64_000, reclaim="lower-priority"),
]  # fmt: skip
#: Fields of spec in the schedulers' own definitions (kueue config/components/crd/bases v1beta1; KAI-Scheduler
#: deployments/kai-scheduler/crds; volcano config/crd/volcano/bases), of which an object may have no other.
FIELDS: dict[str, set[str]] = {
    "Topology": {"levels"},
    "ResourceFlavor": {"nodeLabels", "nodeTaints", "tolerations", "topologyName"},
    "Cohort": {"parentName", "resourceGroups", "fairSharing"},
    "ClusterQueue": {
        "resourceGroups", "cohort", "queueingStrategy", "namespaceSelector", "flavorFungibility", "preemption",
        "admissionChecks", "admissionChecksStrategy", "stopPolicy", "fairSharing", "admissionScope",
    },
    "LocalQueue": {"clusterQueue", "stopPolicy", "fairSharing"},
    "scheduling.run.ai/v2": {"displayName", "parentQueue", "preemptMinRuntime", "priority", "reclaimMinRuntime", "resources"},
    "scheduling.volcano.sh/v1beta1": {
        "affinity", "capability", "deserved", "extendClusters", "guarantee", "parent", "priority", "reclaimable", "type",
        "weight",
    },
    "HyperNode": {"tier", "tierName", "members"},
}  # fmt: skip


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def bare(nodes: list[ClusterNode]) -> list[ClusterNode]:
    return [replace(one, nvlink="", leaf="", rack="", block="") for one in nodes]


def plain(queues: list[QueueQuota]) -> list[QueueQuota]:
    return [replace(one, where="") for one in queues]


@pytest.mark.parametrize("form", ["topology.conf", "topology.yaml", "hypernodes.yaml"])
def test_domains_come_back(tmp_path: Path, form: str) -> None:
    text = {
        "topology.conf": lambda: topology_conf(NODES), "topology.yaml": lambda: topology_yaml(NODES),
        "hypernodes.yaml": lambda: written(volcano_objects(NODES, [])),
    }[form]()  # fmt: skip
    assert with_topology(bare(NODES), put(tmp_path, form, text)) == NODES


def test_nodes_come_back_from_labels(tmp_path: Path) -> None:
    assert read_nodes(put(tmp_path, "nodes.yaml", written(node_objects(NODES)))) == NODES


def test_queues_of_kueue_come_back(tmp_path: Path) -> None:
    assert plain(read_queues(put(tmp_path, "kueue.yaml", written(kueue_objects(NODES, QUEUES))), 4)) == QUEUES


def test_queues_of_kai_come_back_with_what_kai_knows(tmp_path: Path) -> None:
    known = [replace(one, lending=None, reclaim="never", within="never") for one in QUEUES]
    assert plain(read_queues(put(tmp_path, "kai.yaml", written(kai_objects(QUEUES))), 4)) == known


def test_queues_of_volcano_come_back_with_what_volcano_knows(tmp_path: Path) -> None:
    known = [replace(one, reclaim="never", within="never") for one in QUEUES]
    assert plain(read_queues(put(tmp_path, "volcano.yaml", written(volcano_objects([], QUEUES))), 4)) == known


def test_queues_that_own_nodes_come_back_from_reservations(tmp_path: Path) -> None:
    path = put(tmp_path, "reservations.sh", reservations(QUEUES, 4))
    assert read_queues(path, 4) == read_reservations(path, 4)
    assert [(one.name, one.nominal) for one in read_reservations(path, 4)] == [("research", 32_000), ("prod", 64_000)]
    with pytest.raises(InputError, match="no whole nodes of 8"):
        reservations([QueueQuota(name="odd", nominal=12_000)], 8)


def test_objects_have_the_fields_of_their_definitions() -> None:
    objects = [*kueue_objects(NODES, QUEUES), *kai_objects(QUEUES), *volcano_objects(NODES, QUEUES)]
    assert {one["kind"] for one in objects} == {
        "Topology",
        "ResourceFlavor",
        "Cohort",
        "ClusterQueue",
        "LocalQueue",
        "Queue",
        "HyperNode",
    }
    for one in objects:
        allowed = FIELDS[one["apiVersion"] if one["kind"] == "Queue" else one["kind"]]
        assert set(one["spec"]) <= allowed, one
    labels = [level["nodeLabel"] for level in objects[0]["spec"]["levels"]]
    assert labels[-1] == "kubernetes.io/hostname"  # at the lowest level only: a rule of the definition
    assert len(set(labels)) == len(labels) <= 8
    there: Any = next(node_objects(NODES))["metadata"]["labels"]
    assert set(labels) <= set(there)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (ClusterNode(name="GPU_Node_01", gpus=8), "'GPU_Node_01' is no name .* call it gpu-node-01"),
        (ClusterNode(name="n" * 254, gpus=8), "is no name that Kubernetes takes"),
        (ClusterNode(name="n1", gpus=8, rack="row 3/b"), "'row 3/b' is no value that the label .*topology-rack"),
    ],
)
def test_names_that_kubernetes_takes_nowhere_are_told(node: ClusterNode, told: str) -> None:
    """RFC 1123 subdomains of at most 253 characters; values of labels have no spaces and slashes."""
    with pytest.raises(InputError, match=told):
        written(node_objects([node]))


def test_queues_named_as_slurm_names_partitions_are_told() -> None:
    with pytest.raises(InputError, match="ClusterQueue 'Team_A' is no name"):
        written(kueue_objects(NODES, [QueueQuota(name="Team_A", nominal=8_000)]))


def test_a_tree_that_slurm_wrote_is_read_by_its_heights(tmp_path: Path) -> None:
    """As administrators write it, without saying what a switch stands for: leaves, racks; what is above all joins nothing."""
    text = (
        "SwitchName=s0 Nodes=n[00-05]\nSwitchName=s1 Nodes=n[06-11] LinkSpeed=900\nSwitchName=s2 Nodes=n[12-23]\n"
        "SwitchName=t0 Switches=s[0-1]\nSwitchName=t1 Switches=s2\nSwitchName=top Switches=t[0-1]\n"
    )
    nodes = with_topology(bare(NODES), put(tmp_path, "topology.conf", text))
    assert [(one.leaf, one.rack, one.block) for one in nodes[5:13:7]] == [("s0", "t0", ""), ("s2", "t1", "")]
    block = [{"topology": "b", "block": {"block_sizes": [4], "blocks": [{"block": "b1", "nodes": "n[00-03]"}]}}]
    of_blocks = with_topology(bare(NODES), put(tmp_path, "topology.yaml", yaml.safe_dump(block)))
    assert [one.nvlink for one in of_blocks[3:5]] == ["b1", ""]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "switches go in a circle"),
        ("SwitchName=a Nodes=other[1-3]\n", "places none of the nodes"),
        ("- topology: x\n  flat: true\n", "names no switch"),
        ("{", "is not readable YAML"),
    ],
)
def test_topologies_that_cannot_be_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_topology(bare(NODES), put(tmp_path, "topology", text))


def test_all_is_written_that_schedulers_take(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("queue,parent,nominal,weight\na,all,8,1.5\nb,all,8,1\n")
    (tmp_path / "j.csv").write_text("job,submit_s,duration_s,gpus,queue_name\nx,0,10,8,a\n")
    found = tl.simulate_cluster("4x8:2", tmp_path / "j.csv", queues=tmp_path / "q.csv", export=tmp_path / "out")
    names = {"topology.conf", "topology.yaml", "nodes.yaml", "kueue.yaml", "reservations.sh", "kai.yaml"}
    assert {one.name for one in (tmp_path / "out").iterdir()} == names
    assert "no volcano.yaml: queue a: weight 1.5 is no whole number" in str(found)
    again = tl.simulate_cluster(
        tmp_path / "out" / "nodes.yaml", tmp_path / "j.csv", queues=tmp_path / "out" / "kueue.yaml"
    )
    assert again.outcome.gpu_hours == found.outcome.gpu_hours
