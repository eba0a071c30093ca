"""What was seen to run is told as it was: times, nodes, states, and the use of the cards that counters tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError

HEAD = "JobID|User|Partition|State|Submit|Start|End|ElapsedRaw|AllocTRES|NodeList\n"
#: Two nodes of eight: a holds n1, b waits an hour and takes four cards of each, c fails, d was cancelled before it began.
SEEN = (
    HEAD
    + "1|ann|gpu|COMPLETED|2026-11-01T00:00:00|2026-11-01T00:00:00|2026-11-01T02:00:00|7200|gres/gpu=8|n1\n"
    + "2|bob|gpu|COMPLETED|2026-11-01T01:00:00|2026-11-01T02:00:00|2026-11-01T04:00:00|7200|gres/gpu=8|n[1-2]\n"
    + "3|bob|nlp|FAILED|2026-11-01T00:00:00|2026-11-01T00:00:00|2026-11-01T01:00:00|3600|gres/gpu=4|n2\n"
    + "4|eve|nlp|CANCELLED by 7|2026-11-01T00:10:00|None|2026-11-01T00:20:00|0||None assigned\n"
)
NODES = "name,gpus\nn1,8\nn2,8\n"


def seen(folder: Path, jobs: str = SEEN, nodes: str = NODES, **options: object):  # type: ignore[no-untyped-def]
    (folder / "sacct.txt").write_text(jobs)
    (folder / "nodes.csv").write_text(nodes)
    return tl.simulate_cluster(folder / "nodes.csv", folder / "sacct.txt", policy="observed", **options)


def test_times_nodes_and_states_are_those_that_were_seen(tmp_path: Path) -> None:
    found = seen(tmp_path, per_job=tmp_path / "jobs.jsonl")
    lines = [json.loads(one) for one in (tmp_path / "jobs.jsonl").read_text().splitlines()]
    assert {one["job"]: (one["start_s"], one["finish_s"], one["nodes"]) for one in lines} == {
        "1": (0, 7200, 1), "2": (7200, 14400, 2), "3": (0, 3600, 1),
    }  # fmt: skip
    assert found.outcome.waits_s["gpu"]["mean"] == 1800
    hours = found.outcome.gpu_hours
    assert hours.capacity == pytest.approx(16 * 4)
    assert hours.useful == pytest.approx(16 + 16 + 4)
    assert hours.useful + hours.idle + hours.fragmented + hours.lost == pytest.approx(hours.capacity)
    assert {one.state: one.gpu_hours for one in found.ends} == pytest.approx({"COMPLETED": 32.0, "FAILED": 4.0})
    assert {one.queue: one.gpu_hours for one in found.queues} == pytest.approx({"gpu": 32.0, "nlp": 4.0})
    assert found.queues[0].wait_p50_s == pytest.approx(1800)


def test_a_scheduler_beside_it_runs_the_same_jobs(tmp_path: Path) -> None:
    """With a node more, the second job need not wait for the first."""
    found = seen(tmp_path, compare="backfill,+1")
    assert [(one.name, one.nodes) for one in found.compared] == [("backfill", 2), ("backfill", 3)]
    assert found.compared[1].waits_s["all"]["mean"] == 0


def test_jobs_on_more_than_there_is_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sacct.txt line 3: when it began, jobs held more than the nodes have"):
        seen(
            tmp_path,
            SEEN.replace("2026-11-01T02:00:00|2026-11-01T04", "2026-11-01T01:00:00|2026-11-01T04"),
            "name,gpus\nn1,8\nn2,4\n",
        )
    with pytest.raises(InputError, match="observed needs the times at which jobs started"):
        tl.simulate_cluster("2x8", "philly:10", policy="observed")


METRIC = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"


@pytest.mark.parametrize("form", ["table", "text", "api"])
def test_counters_tell_how_well_cards_are_used(tmp_path: Path, form: str) -> None:
    """By the job that a sample names, else by the only one on its node at that time: 1 at 0.4, 2 at (0.1 + 0.3) / 2."""
    import datetime as dates

    at = [dates.datetime.fromisoformat(f"2026-11-01T0{hour}:30:00").timestamp() for hour in (1, 2, 3)]
    samples = [("1", "", at[0], 0.4), ("", "n1", at[1], 0.1), ("", "n2", at[2], 0.3), ("", "elsewhere", at[2], 0.9)]
    path = tmp_path / "telemetry"
    if form == "table":
        path.write_text(
            f"timestamp,hpc_job,Hostname,{METRIC}\n" + "".join(f"{t},{j},{n},{v}\n" for j, n, t, v in samples)
        )
    elif form == "text":
        lines = [f'{METRIC}{{gpu="0",Hostname="{n}",hpc_job="{j}"}} {v} {round(t * 1000)}' for j, n, t, v in samples]
        other = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n1"} 100'
        path.write_text("\n".join([f"# TYPE {METRIC} gauge", *lines, other, "broken{", ""]))
    else:
        series = [
            {"metric": {"__name__": METRIC, "Hostname": f"{n}:9400", "hpc_job": j}, "values": [[t, str(v)]]}
            for j, n, t, v in samples
        ]  # fmt: skip
        path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}))
    found = seen(tmp_path, telemetry=path)
    uses = {one.queue: one.mfu for one in found.queues}
    assert uses["gpu"] == pytest.approx((16 * 0.4 + 16 * 0.2) / 32)
    assert uses["nlp"] is None
    assert found.outcome.mfu_share == pytest.approx((16 * 0.4 + 16 * 0.2) / 64)
    assert "cycles with busy tensor cores (2 jobs)" in str(found)


def test_jobs_that_use_their_cards_little_are_told_with_the_hours_to_gain(tmp_path: Path) -> None:
    jobs = HEAD + "".join(
        f"{at}|u{at}|gpu|COMPLETED|2026-11-01T0{at}:00:00|2026-11-01T0{at}:00:00|2026-11-01T0{at + 1}:00:00|3600|gres/gpu=8|n1\n"
        for at in range(6)
    )
    uses = [0.4, 0.4, 0.4, 0.4, 0.4, 0.1]
    (tmp_path / "use.csv").write_text(
        "hpc_job,tensor_active\n" + "".join(f"{at},{use}\n" for at, use in enumerate(uses))
    )
    found = seen(tmp_path, jobs, telemetry=tmp_path / "use.csv")
    (idle,) = found.idle_jobs
    assert (idle.job, idle.user, idle.mfu) == ("5", "u5", pytest.approx(0.1))
    assert idle.gain_gpu_hours == pytest.approx(8 * (1 - 0.1 / 0.4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hpc_job,tensor_active\n1,40\n", r"use.csv line 2: use '40' is out of range"),
        ("hpc_job,other\n1,40\n", r"use.csv has no column for use"),
        ("hpc_job,tensor_active\nnobody,0.4\n", r"none of its samples of DCGM_FI_PROF_PIPE_TENSOR_ACTIVE is of a job"),
        ('{"status": "error", "result": 1}', r"use.csv is no answer of Prometheus"),
        ('{"data": {"result": [{"metric": {}, "values": [[1%s, "0.4"]]}]}}' % ("0" * 400), r"none of its samples"),
    ],
)
def test_telemetry_that_tells_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "use.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        seen(tmp_path, telemetry=tmp_path / "use.csv")


def test_one_page_tells_queues_states_and_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It fetches nothing, runs nothing, and names that come from outside stay words."""
    seen(tmp_path)
    (tmp_path / "sacct.txt").write_text(SEEN.replace("|nlp|", "|<script>alert(1)</script>|"))
    page = tmp_path / "page.html"
    code = main([
        "simulate", "cluster", "--nodes", str(tmp_path / "nodes.csv"), "--jobs", str(tmp_path / "sacct.txt"),
        "--policy", "observed", "--report", str(page),
    ])  # fmt: skip
    assert code == 0
    html = page.read_text()
    assert "default-src 'none'" in html
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html
    assert "failed" in html
    capsys.readouterr()
