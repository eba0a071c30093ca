"""Tables of known clusters are read as they are, and what cannot be is named with file, line and remedy (exit code 2)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.simulation.cluster.nodes import uniform_nodes
from trilemma.simulation.cluster.tables import JobDefaults, read_jobs

JOBS = "job,submit_s,duration_s,gpus,queue_name,priority\na,0,100,8,x,0\nb,10,50,4,y,1\n"
QUEUES = "queue,parent,nominal\nx,all,8\ny,all,8\n"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def asked(folder: Path, jobs: str = JOBS, *, nodes: str = "2x8", queues: str | None = None, **options: object):  # type: ignore[no-untyped-def]
    if queues is not None:
        options["queues"] = written(folder, "queues.csv", queues)
    return tl.simulate_cluster(nodes, written(folder, "jobs.csv", jobs), **options)


@pytest.mark.parametrize(
    ("jobs", "options", "message"),
    [
        (JOBS.replace("10,50", "-10,50"), {}, r"jobs.csv line 3: submit '-10' is negative or no time; times are 0 s or more"),
        (JOBS.replace("10,50", "10,-50"), {}, r"jobs.csv line 3: duration '-50' is negative"),
        (JOBS.replace(",y,", ",z,"), {"queues": QUEUES}, r"jobs.csv line 3: job b: unknown queue 'z'.*there are x, y"),
        (JOBS.replace("50,4", "50,24"), {}, r"line 3: job b asks for 3 x 8 GPUs, more than the whole cluster can place; make it"),
        (JOBS, {"queues": QUEUES.replace("x,all", "x,y").replace("y,all", "y,x")}, r"queues.csv line 2: cohorts go in a circle"),
        (JOBS, {"queues": QUEUES.replace("y,all,8", "y,,2")}, r"line 3: job b asks for 4 GPUs, queue y may have 2; raise its"),
        (JOBS, {"queues": QUEUES.replace("8\ny", "-8\ny")}, r"queues.csv line 2: nominal '-8' is out of range; give 0 or more"),
        (JOBS, {"queues": QUEUES.replace("y,", "x,")}, r"queues.csv line 3: queue x is stated twice"),
        (JOBS.replace("50,4", "50,4.5"), {}, r"jobs.csv line 3: gpus '4.5' is not a whole number"),
        (JOBS.replace("50,4", "soon,4"), {}, r"jobs.csv line 3: duration 'soon' is no time; give seconds"),
        ("a,b\n1,2\n", {}, r"jobs.csv has no column for gpus; name it one of gpus"),
        ("job,submit_s,gpus\n", {}, r"jobs.csv holds no job"),
        (JOBS, {"nodes": "0x8"}, r"`nodes` 0x8: no node"),
        (JOBS, {"nodes": "4x0"}, r"`nodes` 4x0: no node or no GPU"),
        (JOBS.replace("y,1", "y,high"), {}, r"^jobs.csv line 3: priority 'high' is not a whole number$"),
        (JOBS, {"policy": "lottery"}, r"`policy` 'lottery' is not known; use fifo, backfill"),
        (JOBS, {"placement": "left"}, r"`placement` 'left' is not known"),
        (JOBS, {"failures": "-1:2"}, r"`failures` '-1:2': give hours above 0"),
        (JOBS, {"failures": "1e-9:1"}, r"`failures` '1e-9:1' is out of range; give hours of 0.01 to 1e\+09"),
        (JOBS, {"failures": "inf:1"}, r"`failures` 'inf:1' is out of range"),
        (JOBS, {"queues": QUEUES.replace("x,", "q" * 500 + ",").replace("y,", "q" * 500 + ",")}, r"queue q{79}… is stated twice"),
        (JOBS, {"slowdown": "planet=2"}, r"`slowdown` 'planet=2': no such level"),
        (JOBS, {"demand": -1.0}, r"`demand` -1 is out of range"),
        (JOBS, {"control_plane": "fast"}, r"`control_plane` 'fast' is not WRITES:BURST"),
        (JOBS, {"wait": "many"}, r"`wait` 'many' is not GPUS or GPUS:QUEUE"),
    ],
)  # fmt: skip
def test_bad_input_is_named(tmp_path: Path, jobs: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        asked(tmp_path, jobs, **options)


def test_bad_input_exits_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "jobs.csv", JOBS.replace("10,50", "10,-50"))
    assert main(["simulate", "cluster", "--nodes", "2x8", "--jobs", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "jobs.csv line 3: duration '-50' is negative" in error


def test_a_document_that_scripts_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = written(tmp_path, "jobs.csv", JOBS)
    queues = written(tmp_path, "queues.csv", QUEUES)
    lines = tmp_path / "jobs.jsonl"
    code = main([
        "simulate", "cluster", "--nodes", "1x8", "--jobs", str(jobs), "--queues", str(queues), "--policy", "fifo", "--json",
        "--per-job", str(lines),
    ])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (found["schema"], found["jobs"]) == ("trilemma/cluster@1", 2)
    hours = found["gpu_hours"]
    assert hours["capacity"] == pytest.approx(
        hours["useful"] + hours["idle"] + hours["fragmented"] + hours["lost"], rel=1e-4
    )
    assert hours["useful"] == pytest.approx((8 * 100 + 4 * 50) / 3600, rel=1e-5)
    assert found["waits_s"]["y"] == {"mean": 90.0, "p50": 90.0, "p90": 90.0, "jobs": 1}
    assert found["waits_s"]["8"]["mean"] == 0
    assert found["allocated_share"] == pytest.approx(1000 / 1200, rel=1e-5)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(row["job"], row["start_s"], row["finish_s"], row["nodes"]) for row in rows] == [
        ("a", 0, 100, 1),
        ("b", 100, 150, 1),
    ]


def jobs_of(folder: Path, text: str, name: str = "jobs.csv"):  # type: ignore[no-untyped-def]
    return read_jobs(written(folder, name, text), uniform_nodes(4, 8), JobDefaults())


def test_philly(tmp_path: Path) -> None:
    text = (
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:13:03,2951.0,16,2951.0,6214e9\n"
    )
    first, second = jobs_of(tmp_path, text)
    assert (first.submit_ticks, first.queue, first.shape.pods, first.shape.gpus) == (0, "6214e9", 2, 8)
    assert (second.submit_ticks, second.work_ticks) == (2_932_000_000, 66_000_000)


def test_helios_whose_queue_is_seconds(tmp_path: Path) -> None:
    text = (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "7,u1,vcA,8,32,1,COMPLETED,2020-04-01 00:00:03,2020-04-01 00:00:13,2020-04-01 00:10:13,600,10\n"
    )
    (one,) = jobs_of(tmp_path, text)
    assert (one.queue, one.user, one.work_ticks) == ("vcA", "u1", 600_000_000)


def test_openb_fractions_and_card_models(tmp_path: Path) -> None:
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,6000,12288,1,460,V100M16|V100M32,LS,Running,100,400,150\np1,20000,65536,0,0,,LS,Running,427,,\n"
    )
    path = tmp_path / "pods.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    first, second = read_jobs(path, uniform_nodes(4, 8), JobDefaults())
    assert (first.shape.gpu_milli, first.shape.models, first.work_ticks) == (460, ("V100M16", "V100M32"), 250_000_000)
    assert (second.shape.gpus, second.shape.cpu_milli, second.work_ticks) == (0, 20000, None)


def test_sacct(tmp_path: Path) -> None:
    text = (
        "JobID|Submit|Start|End|ElapsedRaw|Timelimit|AllocTRES|Partition|User|State\n"
        "12|2026-01-01T00:00:00|2026-01-01T00:01:00|2026-01-01T01:01:00|3600|02:00:00|billing=32,cpu=32,gres/gpu:a100=16,gres/gpu=16"
        "|gpu|eve|COMPLETED\n"
        "12.batch|2026-01-01T00:01:00|2026-01-01T00:01:00|2026-01-01T01:01:00|3600||cpu=32||eve|COMPLETED\n"
        "13|2026-01-01T00:00:30|Unknown|Unknown|0|1-00:00:00|gres/gpu=1|gpu|eve|PENDING\n"
    )
    first, second = read_jobs(written(tmp_path, "jobs.csv", text), uniform_nodes(4, 8, model="a100"), JobDefaults())
    assert (first.shape.pods, first.shape.gpus, first.shape.models) == (2, 8, ("a100",))
    assert (first.work_ticks, first.limit_ticks) == (3_600_000_000, 7_200_000_000)
    assert (second.name, second.submit_ticks, second.limit_ticks) == ("13", 30_000_000, 86_400_000_000)


def test_nodes_are_named_once_and_files_are_text(tmp_path: Path) -> None:
    jobs = written(tmp_path, "jobs.csv", JOBS)
    with pytest.raises(InputError, match=r"nodes.csv line 3: node 'a' is stated twice"):
        tl.simulate_cluster(written(tmp_path, "nodes.csv", "name,gpus\na,8\na,8\n"), jobs)
    binary = tmp_path / "bin.csv"
    binary.write_bytes(b"\x87\xff,\xfe\n")
    with pytest.raises(InputError, match=r"bin.csv cannot be read as text"):
        tl.simulate_cluster("2x8", binary)
    with pytest.raises(InputError, match="philly:0 on 16 GPUs: give one job or more"):
        tl.simulate_cluster("2x8", "philly:0")


def test_few_drawn_jobs_still_work() -> None:
    assert tl.simulate_cluster("2x8", "philly:10").outcome.seconds_simulated > 600


def test_jobs_without_a_time_come_at_once_and_that_is_said(tmp_path: Path) -> None:
    found = asked(tmp_path, "name,num_gpu,gpu_milli\na,1,500\nb,8,1000\nc,8,1000\n", policy="best-fit")
    assert [one.code for one in found.warnings] == ["all_at_once"]
    assert (found.outcome.unstarted, found.outcome.allocated_share) == (1, pytest.approx(8.5 / 16))
    assert not found.fits


@pytest.mark.parametrize("word", ["best_fit", "-4", "4"])
def test_what_is_compared_is_a_policy_or_more_nodes(word: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`compare` .* neither a policy nor \+N nodes; use fifo, .* such as \+4"):
        asked(tmp_path, compare=word)
