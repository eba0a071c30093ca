"""What schedulers write of themselves is read as it is: Slurm's JSON and text, Kueue's workloads, KAI's snapshots."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.simulation.cluster.jobs import TICKS
from trilemma.simulation.cluster.nodes import ClusterNode, uniform_nodes
from trilemma.simulation.cluster.slurm_rows import host_names
from trilemma.simulation.cluster.tables import JobDefaults, read_jobs, read_nodes, read_queues

NUMBER = {"set": True, "infinite": False}
#: squeue --json of Slurm 23.11 (data_parser/v0.0.40), its fields as they stand there.
SQUEUE = {
    "jobs": [
        {
            "job_id": 11, "name": "train", "partition": "gpu", "user_name": "ann", "job_state": ["RUNNING"], "nodes": "n[01-02]",
            "submit_time": {**NUMBER, "number": 1000}, "start_time": {**NUMBER, "number": 1600},
            "end_time": {**NUMBER, "number": 8800}, "time_limit": {**NUMBER, "number": 120},
            "tres_alloc_str": "cpu=64,mem=512G,node=2,billing=64,gres/gpu=16,gres/gpu:h100=16",
        },
        {
            "job_id": 12, "name": "wide", "partition": "gpu", "user_name": "bob", "job_state": ["PENDING"], "nodes": "",
            "submit_time": {**NUMBER, "number": 1300}, "start_time": {**NUMBER, "number": 9000},
            "end_time": {**NUMBER, "number": 12600}, "time_limit": {**NUMBER, "number": 60},
            "tres_alloc_str": "", "tres_req_str": "cpu=8,mem=64G,node=1,billing=8,gres/gpu=8",
        },
    ],
    "errors": [],
}  # fmt: skip
#: sacct --json (slurmdbd, v0.0.40).
SACCT = {
    "jobs": [
        {
            "job_id": 7, "name": "eval", "partition": "gpu", "user": "ann", "nodes": "n03",
            "state": {"current": ["TIMEOUT"], "reason": "None"}, "association": {"account": "lab", "user": "ann"},
            "time": {
                "elapsed": 600, "start": 1747064600, "end": 1747065200, "submission": 1747064484,
                "limit": {**NUMBER, "number": 10},
            },
            "tres": {
                "allocated": [
                    {"type": "cpu", "name": "", "id": 1, "count": 8}, {"type": "gres", "name": "gpu", "id": 1001, "count": 4},
                ],
            },
        },
        {
            "job_id": 8, "name": "gone", "partition": "gpu", "user": "bob", "nodes": "None assigned",
            "state": {"current": ["CANCELLED"], "reason": "None"},
            "time": {"elapsed": 0, "start": 0, "end": 1747064500, "submission": 1747064490, "limit": {"infinite": True}},
            "tres": {"allocated": [], "requested": [{"type": "gres", "name": "gpu", "id": 1001, "count": 8}]},
        },
    ]
}  # fmt: skip
SCONTROL = """NodeName=n01 Arch=x86_64 CoresPerSocket=48
   CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.31
   Gres=gpu:h100:8(S:0-1)
   RealMemory=2063000 AllocMem=0 FreeMem=1990000 Sockets=2 Boards=1
   State=IDLE ThreadsPerCore=2 TmpDisk=0 Weight=1
   Partitions=gpu

NodeName=n02 Arch=x86_64 CoresPerSocket=48
   CPUTot=192 Gres=gpu:h100:8(S:0-1)
   RealMemory=2063000 Sockets=2
   State=IDLE+DRAIN ThreadsPerCore=2
   Reason=Kill task failed [root@2026-11-01T10:00:00]
"""


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_queue_of_slurm_as_json(tmp_path: Path) -> None:
    """Waiting jobs take what they may take; when they are expected to start is not when they did."""
    running, waiting = read_jobs(written(tmp_path, "squeue.json", SQUEUE), uniform_nodes(4, 8), JobDefaults())
    assert (running.name, running.shape.total_gpus, running.shape.pods, running.queue) == ("11", 16, 2, "gpu")
    assert (running.submit_ticks, running.start_ticks, running.end_ticks) == (0, 600 * TICKS, None)
    assert running.on_nodes == ("n01", "n02")
    assert (running.work_ticks, running.limit_ticks, running.state) == (7200 * TICKS, 7200 * TICKS, "RUNNING")
    assert (waiting.submit_ticks, waiting.start_ticks, waiting.work_ticks) == (300 * TICKS, None, 3600 * TICKS)
    assert (waiting.shape.total_gpus, waiting.on_nodes) == (8, ())


def test_accounts_of_slurm_as_json(tmp_path: Path) -> None:
    """A job that was cancelled before it began asked for nothing in the end."""
    (job,) = read_jobs(written(tmp_path, "sacct.json", SACCT), uniform_nodes(4, 8), JobDefaults())
    assert (job.name, job.shape.total_gpus, job.user, job.state) == ("7", 4, "ann", "TIMEOUT")
    assert (job.work_ticks, job.limit_ticks) == (600 * TICKS, 600 * TICKS)
    assert (job.start_ticks, job.end_ticks) == (116 * TICKS, 716 * TICKS)


def test_accounts_of_slurm_as_text_count_raw_limits_in_minutes(tmp_path: Path) -> None:
    text = (
        "JobID|User|Partition|State|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NodeList\n"
        "5|ann|gpu|COMPLETED|2026-11-01T00:00:00|2026-11-01T00:10:00|2026-11-01T00:20:00|600|30|cpu=8,gres/gpu=2|n[1-2]\n"
        "5.batch||||2026-11-01T00:10:00|2026-11-01T00:10:00|2026-11-01T00:20:00|600||cpu=8,gres/gpu=2|n1\n"
        "6|bob|gpu|CANCELLED by 1000|2026-11-01T00:05:00|None|2026-11-01T00:06:00|0|60||None assigned\n"
        "9|bob|gpu|PENDING|2026-11-01T00:05:00|Unknown|Unknown|0|60|gres/gpu=8|None assigned\n"
    )
    done, waiting = read_jobs(written(tmp_path, "sacct.txt", text), uniform_nodes(4, 8), JobDefaults())
    assert (done.limit_ticks, done.work_ticks, done.on_nodes) == (1800 * TICKS, 600 * TICKS, ("n1", "n2"))
    assert (waiting.name, waiting.work_ticks, waiting.state) == ("9", 3600 * TICKS, "PENDING")


@pytest.mark.parametrize("form", ["text", "json", "old json"])
def test_nodes_of_slurm(tmp_path: Path, form: str) -> None:
    gres = "gpu:h100:8(S:0-1)"
    states: list[Any] = [["IDLE"], ["IDLE", "DRAIN"]] if form == "json" else ["idle", "idle"]
    nodes = [
        {"name": f"n0{at + 1}", "gres": gres, "cpus": 192, "real_memory": 2063000, "sockets": 2, "state": states[at],
         "state_flags": ["DRAIN"] if form == "old json" and at else []}
        for at in range(2)
    ]  # fmt: skip
    path = written(tmp_path, "nodes", SCONTROL if form == "text" else {"nodes": nodes, "meta": {}})
    expected = ClusterNode(name="n01", gpus=8, model="h100", cpu_milli=192_000, memory_mib=2_063_000, sockets=2)
    first, second = read_nodes(path)
    assert first == expected
    assert (second.name, second.is_down) == ("n02", True)


def test_nodes_that_are_drained_are_left_out(tmp_path: Path) -> None:
    nodes, jobs = (
        written(tmp_path, "nodes.txt", SCONTROL),
        written(tmp_path, "j.csv", "job,submit_s,duration_s,gpus\na,0,10,8\n"),
    )
    found = tl.simulate_cluster(nodes, jobs)
    assert found.outcome.nodes == 1
    assert "1 node of 2 down or drained: left out" in str(found)
    with pytest.raises(InputError, match="all are down or drained"):
        tl.simulate_cluster(written(tmp_path, "down.txt", SCONTROL.replace("State=IDLE ", "State=DOWN* ")), jobs)


def test_jobs_of_scontrol(tmp_path: Path) -> None:
    text = (
        "JobId=31 JobName=train\n   UserId=ann(1000) GroupId=lab(100)\n   Priority=4 Nice=0 Account=lab QOS=normal\n"
        "   JobState=RUNNING Reason=None Dependency=(null)\n   RunTime=00:10:00 TimeLimit=1-00:00:00 TimeMin=N/A\n"
        "   SubmitTime=2026-11-01T00:00:00 Eligible=Unknown\n   StartTime=2026-11-01T00:05:00 EndTime=2026-11-02T00:05:00\n"
        "   Partition=gpu AllocNode:Sid=login:1\n   NodeList=n[01-02]\n   AllocTRES=cpu=64,mem=512G,node=2,gres/gpu=16\n"
    )  # fmt: skip
    (job,) = read_jobs(written(tmp_path, "jobs.txt", text), uniform_nodes(4, 8), JobDefaults())
    assert (job.name, job.user, job.queue, job.shape.total_gpus) == ("31", "ann", "gpu", 16)
    assert (job.work_ticks, job.start_ticks, job.end_ticks) == (86400 * TICKS, 300 * TICKS, None)


def workload(name: str, **conditions: str) -> dict[str, Any]:
    pod = {"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "8"}}}]}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
        "metadata": {"name": name, "creationTimestamp": "2026-11-01T00:00:00Z"},
        "spec": {
            "queueName": "team-a", "priority": 5,
            "podSets": [
                {"name": "launcher", "count": 1, "template": {"spec": {"containers": [{}]}}},
                {"name": "worker", "count": 4, "template": pod, "topologyRequest": {"required": "cloud/topology-rack"}},
            ],
        },
        "status": {
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": at} for kind, at in conditions.items()],
        },
    }  # fmt: skip


def test_workloads_of_kueue(tmp_path: Path) -> None:
    times = {"Admitted": "2026-11-01T00:10:00Z", "Finished": "2026-11-01T01:10:00Z"}
    listed = {"kind": "List", "apiVersion": "v1", "items": [workload("a", **times), workload("b")]}
    done, waiting = read_jobs(
        written(tmp_path, "workloads.json", listed), uniform_nodes(4, 8, per_rack=4), JobDefaults()
    )
    assert (done.queue, done.priority, done.shape.pods, done.shape.gpus) == ("team-a", 5, 4, 8)
    assert (done.shape.within, done.shape.strict) == ("rack", True)
    assert (done.start_ticks, done.work_ticks, done.state) == (600 * TICKS, 3600 * TICKS, "COMPLETED")
    assert (waiting.start_ticks, waiting.state) == (None, "PENDING")


def test_a_snapshot_of_kai_is_nodes_queues_and_jobs(tmp_path: Path) -> None:
    """Objects of a list have no kind there (KAI-Scheduler, plugins/snapshot: RawKubernetesObjects)."""
    raw = {
        "nodes": [
            {"metadata": {"name": "n1", "labels": {"topology-rack": "r1"}}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}},
        ],
        "queues": [
            {"metadata": {"name": "lab"}, "spec": {"resources": {"gpu": {"quota": 4, "limit": -1, "overQuotaWeight": 2}}}},
        ],
        "priorityClasses": [{"metadata": {"name": "high"}, "value": 100}],
        "podGroups": [
            {"metadata": {"name": "pg", "creationTimestamp": "2026-11-01T00:00:00Z"},
             "spec": {"queue": "lab", "minMember": 1, "priorityClassName": "high"}},
        ],
        "pods": [
            {"metadata": {"name": f"p{at}", "annotations": {"pod-group-name": "pg"}},
             "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
             "status": {"startTime": "2026-11-01T00:01:00Z"}}
            for at in range(2)
        ],
    }  # fmt: skip
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("snapshot.json", json.dumps({"config": {}, "schedulerParams": {}, "rawObjects": raw}))
    path = tmp_path / "snapshot.zip"
    path.write_bytes(packed.getvalue())
    (node,) = read_nodes(path)
    assert (node.name, node.gpus, node.rack) == ("n1", 8, "r1")
    (queue,) = read_queues(path, 8)
    assert (queue.name, queue.nominal, queue.weight) == ("lab", 4000, 2.0)
    (job,) = read_jobs(path, [node], JobDefaults())
    assert (job.queue, job.priority, job.shape.pods, job.shape.gpus, job.shape.fewest_pods) == ("lab", 100, 2, 2, 1)
    assert (job.start_ticks, job.on_nodes) == (60 * TICKS, ("n1", "n1"))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("n1", ["n1"]), ("n[01-03,7],m", ["n01", "n02", "n03", "n7", "m"]), ("r[1-2]n[3-4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
        ("", []), ("n[9-11]-ib", ["n9-ib", "n10-ib", "n11-ib"]),
    ],
)  # fmt: skip
def test_lists_of_hosts(words: str, names: list[str]) -> None:
    assert list(host_names(words)) == names


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[" * 200_000, "a.json is not readable JSON"),
        ("a.json", "{", "a.json is not readable JSON"),
        ("a.json", {"jobs": []}, "a.json holds no job; give squeue --json"),
        ("a.json", {"nodes": [{"name": "x"}]}, "a.json holds no job"),
        ("a.json", {"kind": "Pod", "metadata": {"name": "p"}}, "a.json holds no Workload or PodGroup"),
        ("a.json", [1, 2], "a.json is JSON of neither Slurm"),
        ("a.txt", SCONTROL, "a.txt holds no JobId="),
        ("a.csv", "job,gpus,NodeList\na,1,n[1-99999999]\n", "names more than 200,000 nodes"),
    ],
)  # fmt: skip
def test_hostile_files_exit_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: Any, message: str
) -> None:
    path = written(tmp_path, name, content)
    assert main(["simulate", "cluster", "--nodes", "2x8", "--jobs", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_archives_that_are_none_exit_with_two(tmp_path: Path) -> None:
    broken, other = tmp_path / "broken.zip", tmp_path / "other.zip"
    broken.write_bytes(b"PK\x03\x04 and no more")
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("readme", "nothing")
    with pytest.raises(InputError, match=r"broken.zip cannot be unpacked"):
        read_nodes(broken)
    with pytest.raises(InputError, match=r"other.zip holds no snapshot.json"):
        read_nodes(other)


ODD: list[Any] = [None, -1, 1e300, "", [], {}, True, "x", [1], {"a": 1}, [None], 10**30]


@pytest.mark.parametrize("kind", ["jobs", "nodes", "queues"])
def test_documents_of_any_shape_are_read_or_refused(tmp_path: Path, kind: str) -> None:
    """Whatever stands in the place of a value: an answer or an `InputError`, nothing else."""
    rng = random.Random(7)
    queue = {"kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {
        "resourceGroups": [{"flavors": [{"resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8}]}]}],
        "preemption": {"withinClusterQueue": "Never"}, "fairSharing": {"weight": "2"}}}  # fmt: skip
    of_kai = {"kind": "Queue", "apiVersion": "scheduling.run.ai/v2", "metadata": {"name": "k"},
              "spec": {"resources": {"gpu": {"quota": 4, "limit": -1, "overQuotaWeight": 2}}}}  # fmt: skip
    node = {
        "kind": "Node", "metadata": {"name": "n", "labels": {"rack": "r"}}, "spec": {"unschedulable": False},
        "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "4"}, "conditions": []},
    }  # fmt: skip
    whole = {
        "jobs": [SQUEUE, SACCT, {"kind": "List", "items": [workload("a", Admitted="2026-11-01T00:10:00Z")]}],
        "nodes": [{"kind": "List", "items": [node]}], "queues": [{"kind": "List", "items": [queue, of_kai]}],
    }[kind]  # fmt: skip
    read: Any = {
        "jobs": lambda path: read_jobs(path, uniform_nodes(4, 8), JobDefaults()), "nodes": read_nodes,
        "queues": lambda path: read_queues(path, 8),
    }[kind]  # fmt: skip
    refused = 0
    for _ in range(300):
        document = json.loads(json.dumps(rng.choice(whole)))
        spots = list(_places(document))
        for _ in range(rng.randrange(1, 4)):
            holder, name = rng.choice(spots)
            holder[name] = rng.choice(ODD)
        try:
            read(written(tmp_path, "document.json", document))
        except InputError:
            refused += 1
    assert 0 < refused < 300


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    for name, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield document, name
        if isinstance(value, dict | list):
            yield from _places(value)
