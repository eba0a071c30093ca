"""Objects of Kubernetes as they are: nodes with labels of their topology, queues of Kueue and KAI."""

from __future__ import annotations

from pathlib import Path

import pytest

import trilemma as tl
from trilemma.errors import InputError
from trilemma.simulation.cluster.manifests import read_node_manifests, read_queue_manifests

NODES = """
apiVersion: v1
kind: List
items:
- kind: Node
  metadata:
    name: a
    labels:
      nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
      cloud.provider.com/topology-block: b1
      cloud.provider.com/topology-rack: r1
      backend.coreweave.cloud/leafgroup: "71"
  status: {allocatable: {nvidia.com/gpu: "8", cpu: 96, memory: 256Gi}}
- kind: Node
  metadata: {name: b}
  status: {allocatable: {cpu: 3500m}}
"""
KUEUE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team-a}
spec:
  cohortName: all
  preemption: {reclaimWithinCohort: Any, withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu, nvidia.com/gpu]
    flavors:
    - name: h100
      resources:
      - {name: cpu, nominalQuota: 100}
      - {name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: 4, lendingLimit: 2}
---
kind: ClusterQueue
metadata: {name: team-b}
spec: {cohortName: all, resourceGroups: [{flavors: [{resources: [{name: nvidia.com/gpu, nominalQuota: "8"}]}]}]}
---
kind: Cohort
metadata: {name: all}
---
kind: LocalQueue
metadata: {name: research}
spec: {clusterQueue: team-a}
"""
KAI = """
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: department}
spec: {resources: {gpu: {quota: -1, limit: -1, overQuotaWeight: 1}}}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: queue1}
spec: {parentQueue: department, resources: {gpu: {quota: 10, limit: -1, overQuotaWeight: 3}}}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: queue2}
spec: {parentQueue: department, resources: {gpu: {quota: 10, limit: -1, overQuotaWeight: 1}}}
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_nodes_of_kubernetes(tmp_path: Path) -> None:
    first, second = read_node_manifests(written(tmp_path, "nodes.yaml", NODES))
    assert (first.gpus, first.model, first.cpu_milli) == (8, "NVIDIA-H100-80GB-HBM3", 96_000)
    assert (first.block, first.rack, first.leaf) == ("b1", "r1", "71")
    assert (second.gpus, second.cpu_milli, second.rack) == (0, 3_500, "")


def test_queues_of_kueue(tmp_path: Path) -> None:
    path = written(tmp_path, "queues.yaml", KUEUE)
    found = {one.name: one for one in read_queue_manifests(path)}
    one = found["team-a"]
    assert (one.parent, one.nominal, one.borrowing, one.lending) == ("all", 8_000, 4_000, 2_000)
    assert (one.reclaim, one.within, found["research"].alias) == ("any", "lower-priority", "team-a")
    assert found["all"].is_cohort
    jobs = written(
        tmp_path, "jobs.csv",
        "job,submit_s,duration_s,gpus,queue_name\na,0,100,8,research\nb,1,100,2,team-a\nc,2,50,8,team-b\n",
    )  # fmt: skip
    run = tl.simulate_cluster("2x8", jobs, queues=path, policy="kueue").outcome
    assert run.completed == 3
    assert run.waits_s["research"]["mean"] == 0


@pytest.mark.parametrize(("second", "borrowing"), [("borrowingLimit: 6", 10_000), ("lendingLimit: 1", None)])
def test_a_flavor_without_a_bound_leaves_the_queue_unbounded(
    tmp_path: Path, second: str, borrowing: int | None
) -> None:
    """Quotas of flavors add up; Kueue bounds each flavor by its own limit, and one that states none borrows what there is."""
    text = f"""
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: q}}
spec:
  cohort: c
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors:
    - {{name: h100, resources: [{{name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: 4}}]}}
    - {{name: a100, resources: [{{name: nvidia.com/gpu, nominalQuota: 16, {second}}}]}}
"""
    (queue,) = read_queue_manifests(Path(written(tmp_path, "flavors.yaml", text)))
    assert (queue.nominal, queue.borrowing) == (24_000, borrowing)


def test_fair_shares_are_those_of_kais_own_simulator(tmp_path: Path) -> None:
    """NVIDIA/KAI-Scheduler, cmd/fairshare-simulator/README.md: 100 GPUs, each deserves 10, weights 3 and 1: 70 and 30."""
    queues = written(tmp_path, "queues.yaml", KAI)
    lines = "".join(f"{queue}-{at},0,,1,{queue}\n" for at in range(100) for queue in ("queue1", "queue2"))
    jobs = written(tmp_path, "jobs.csv", f"job,submit_s,duration_s,gpus,queue_name\n{lines}")
    rows = tmp_path / "jobs_out.csv"
    tl.simulate_cluster("25x4", jobs, queues=queues, policy="kai", per_job=rows)
    started = [line.split(",")[1] for line in rows.read_text().splitlines()[1:] if line.split(",")[4]]
    assert {name: started.count(name) for name in ("queue1", "queue2")} == {"queue1": 70, "queue2": 30}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nodes", "kind: Pod\nmetadata: {name: a}\n", "nodes.yaml holds no Node"),
        ("nodes", NODES.replace('"8"', '"-8"'), "nodes.yaml: GPUs '-8' is not a whole number"),
        ("queues", "kind: Pod\nmetadata: {name: a}\n", "queues.yaml holds no ClusterQueue, Cohort or KAI Queue"),
        ("queues", KUEUE.replace("{name: team-b}", "{}"), "queues.yaml: a ClusterQueue has no metadata.name"),
    ],
)
def test_bad_manifests_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    read = read_node_manifests if name == "nodes" else read_queue_manifests
    with pytest.raises(InputError, match=message):
        read(written(tmp_path, f"{name}.yaml", text))
