"""Will it start tonight? Told from who runs and who waits, with what is left of them as it usually is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from clusters import job

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.simulation.cluster.start_forecast import UsualLengths

HEAD = "JobID,State,Submit,Start,Timelimit,gpus,NodeList,Elapsed\n"


def snapshot(folder: Path, *rows: str, history: str = "", **options: Any):  # type: ignore[no-untyped-def]
    (folder / "queue.csv").write_text(HEAD + "".join(f"{row}\n" for row in rows))
    if history:
        (folder / "month.csv").write_text(history)
        options["history"] = folder / "month.csv"
    (folder / "nodes.csv").write_text("name,gpus\nn1,8\nn2,8\n")
    return tl.simulate_cluster(folder / "nodes.csv", folder / "queue.csv", processes=1, **options)


def month(share: float, many: int = 40) -> str:
    """Jobs that took ``share`` of a limit of 1,000 s."""
    rows = "".join(f"h{at},{at},{1000 * share},1000,1,COMPLETED\n" for at in range(many))
    return "job,submit_s,duration_s,limit_s,gpus,state\n" + rows


def test_a_job_starts_when_enough_ends_as_jobs_usually_do(tmp_path: Path) -> None:
    """Both nodes are held since 0; jobs take half of their limits: at 900 s the first node is free in 600 s, for 3, which stands
    before it and takes 500 s."""
    rows = ["1,RUNNING,0,0,3000,8,n1,", "2,RUNNING,0,0,6000,8,n2,", "3,PENDING,900,,1000,1,,"]
    found = snapshot(tmp_path, *rows, history=month(0.5), wait="8", by=0.25, policy="fifo")
    (told,) = found.forecast
    assert (told.wait_s, told.low_s, told.high_s, told.chance) == (
        1100,
        1100,
        1100,
        0.0,
    )
    early = snapshot(tmp_path, *rows[:2], history=month(0.5), wait="8", by=0.5, policy="fifo")
    assert early.forecast[0].wait_s == 1500
    assert early.forecast[0].chance == 1.0
    assert "starts in" in str(early)


def test_jobs_run_on_where_they_were_seen(tmp_path: Path) -> None:
    """Two jobs of four on nodes of their own leave no whole node free, which packing them would."""
    rows = ["1,RUNNING,0,0,1000,4,n1,", "2,RUNNING,0,0,1000,4,n2,"]
    found = snapshot(tmp_path, *rows, history=month(1.0), wait="8")
    assert found.forecast[0].wait_s == 1000
    packed = snapshot(tmp_path, rows[0], rows[1].replace("n2", "n1"), history=month(1.0), wait="8")
    assert packed.forecast[0].wait_s == 0


def test_more_nodes_and_other_policies_are_told_beside_it(tmp_path: Path) -> None:
    rows = ["1,RUNNING,0,0,3000,8,n1,", "2,RUNNING,0,0,3000,8,n2,", "3,PENDING,0,,3000,16,,"]
    found = snapshot(tmp_path, *rows, history=month(1.0), wait="4::0.5", policy="fifo", compare="backfill,+1", by=1)
    waits = {(one.name, one.nodes): one.wait_s for one in found.forecast}
    assert waits == {("fifo", 2): 6000, ("backfill", 2): 6000, ("fifo", 3): 3000}
    assert [one.chance for one in found.forecast] == [0.0, 0.0, 1.0]


def test_without_history_what_is_left_may_be_anything_up_to_the_limit(tmp_path: Path) -> None:
    found = snapshot(tmp_path, "1,RUNNING,0,0,1000,8,n1,", "2,RUNNING,0,0,100000,8,n2,", wait="8")
    (told,) = found.forecast
    assert told.low_s is not None
    assert told.high_s is not None
    assert told.low_s < 250
    assert told.high_s > 700


def test_jobs_without_limits_need_a_history(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"queue.csv line 2: it has no time limit, and fewer than 25 jobs are over"):
        snapshot(tmp_path, "1,RUNNING,0,0,,8,n1,", wait="8")
    known = snapshot(tmp_path, "1,RUNNING,0,0,,8,n1,", "2,RUNNING,0,0,,8,n2,", wait="8", history=month(0.7))
    assert known.forecast[0].wait_s == 700


def test_what_ran_long_is_held_against_those_that_ran_as_long() -> None:
    """Of shares 0.1 and 0.9 a job at 0.5 of its limit ends at 0.9."""
    usual = UsualLengths(limits_s=(1000.0,) * 31, shares=(0.1,) * 30 + (0.9,), lengths_s=())
    one = job("x", 8, None, limit_s=1000)
    assert usual.drawn_ticks(one, 0, 0.5) == 100_000_000
    assert usual.drawn_ticks(one, 500_000_000, 0.5) == 900_000_000


def test_jobs_are_held_against_those_with_limits_like_theirs() -> None:
    """A hundred short limits are taken whole, a hundred long ones by a tenth."""
    usual = UsualLengths(limits_s=(60.0,) * 100 + (86400.0,) * 100, shares=(1.0,) * 100 + (0.1,) * 100, lengths_s=())
    assert usual.drawn_ticks(job("x", 8, None, limit_s=80000), 0, 0.5) == 8_000_000_000
    assert usual.drawn_ticks(job("x", 8, None, limit_s=60), 0, 0.5) == 60_000_000


def test_bad_words_exit_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.csv").write_text(HEAD + "1,RUNNING,0,0,1000,8,n1,\n")
    code = main(["simulate", "cluster", "--nodes", "2x8", "--jobs", str(tmp_path / "q.csv"), "--wait", "8:q:soon"])
    assert code == 2
    assert re.search(r"--wait '8:q:soon' is not GPUS", capsys.readouterr().err)
    code = main(["simulate", "cluster", "--nodes", "2x8", "--jobs", str(tmp_path / "q.csv"), "--wait", "8", "--json"])
    assert code == 0
    assert json.loads(capsys.readouterr().out)["forecast"][0]["draws"] == 48
