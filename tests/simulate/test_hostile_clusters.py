"""Files of schedulers that mean harm: answered or refused in one line, soon; names stay names in what is written."""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trilemma.cli.main import main

JOBS = "job,submit_s,duration_s,gpus\na,0,100,8\nb,1,50,4\n"
HOSTILE = [
    "nan", "inf", "-inf", "1e400", "1e308", "-1", "0", "1e-320", "9" * 400, "9" * 5000, "abc", "²", "٣", "1,2", "1-2-3:4:5",
    "$(x)", "9999999999999-00:00:00", "9" * 5000 + "-01:00:00",
]  # fmt: skip
JSON = ["NaN", "Infinity", "-1", "1e400", "9" * 400, "9" * 5000, "null", '"x"', "[]", "{}", "true", '{"number": 1e300}']


def _ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["simulate", "cluster", *words])
    said = capsys.readouterr().err
    assert code in (0, 1, 2), (words, said)
    assert code != 2 or (said.count("\n") == 1 and len(said) < 700), said
    return code, said


def _table(path: Path, row: dict[str, str]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(row), list(row.values())])
    return str(path)


@given(
    column=st.sampled_from(["submit_s", "duration_s", "gpus", "priority", "pods", "limit_s", "checkpoint_s", "restart_s", "mig"]),
    value=st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8)),
)  # fmt: skip
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cells_of_any_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, value: str) -> None:
    row = {"job": "a", "submit_s": "0", "duration_s": "10", "gpus": "8"} | {column: value}
    _ask(capsys, "--nodes", "2x8", "--jobs", _table(tmp_path / "jobs.csv", row))


@given(
    value=st.sampled_from(JSON),
    where=st.sampled_from(["count", "submission", "end", "elapsed", "job_id", "tres", "state"]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_slurm_json_of_any_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, value: str) -> None:
    job: dict[str, Any] = {
        "job_id": 1, "state": {"current": ["COMPLETED"]}, "time": {"submission": 100, "start": 110, "end": 200, "elapsed": 90},
        "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 8}]},
    }  # fmt: skip

    def put(one: Any) -> Any:
        if isinstance(one, dict):
            return {name: "@@" if name == where else put(of) for name, of in one.items()}
        return [put(of) for of in one] if isinstance(one, list) else one

    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [put(job)]}).replace('"@@"', value))
    _ask(capsys, "--nodes", "2x8", "--jobs", str(tmp_path / "jobs.json"))


@pytest.mark.parametrize("text", [
    f"NodeName=n0 Gres=gpu:{'9' * 5000}", f"NodeName=n0 Gres=gpu:8 CPUTot=² Sockets={'9' * 5000}", "NodeName=n0 Gres=gpu:0",
])  # fmt: skip
def test_nodes_of_scontrol(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "nodes.txt").write_text(text + "\n", encoding="utf-8")
    (tmp_path / "jobs.csv").write_text(JOBS)
    _ask(capsys, "--nodes", str(tmp_path / "nodes.txt"), "--jobs", str(tmp_path / "jobs.csv"))


@pytest.mark.parametrize("text", [
    "JobId=1 TRES=gres/gpu=8 SubmitTime=2024-01-01T00:00:00 JobState=PENDING TimeLimit=999999999999-00:00:00",
    f"JobId=1 TRES=gres/gpu={'9' * 5000} SubmitTime=2024-01-01T00:00:00 JobState=PENDING TimeLimit=1-00:00:00",
])  # fmt: skip
def test_jobs_of_scontrol(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "jobs.txt").write_text(text + "\n")
    assert _ask(capsys, "--nodes", "2x8", "--jobs", str(tmp_path / "jobs.txt"))[0] == 2


def test_switches_that_stand_below_two_are_walked_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """60 levels of pairs are 2^60 ways down."""
    lines = [f"SwitchName={one}{at} Switches=s{at + 1},t{at + 1}" for at in range(60) for one in "st"]
    lines += ["SwitchName=s60 Nodes=node-0", "SwitchName=t60 Nodes=node-1"]
    (tmp_path / "topology.conf").write_text("\n".join(lines))
    (tmp_path / "jobs.csv").write_text(JOBS)
    _ask(capsys, "--nodes", "2x8", "--topology", str(tmp_path / "topology.conf"), "--jobs", str(tmp_path / "jobs.csv"))


def test_lists_of_nodes_are_bounded_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "topology.conf").write_text("".join(f"SwitchName=s{at} Nodes=n[0-199998]\n" for at in range(12)))
    (tmp_path / "jobs.csv").write_text(JOBS)
    code, said = _ask(
        capsys, "--nodes", "2x8", "--topology", str(tmp_path / "topology.conf"), "--jobs", str(tmp_path / "jobs.csv")
    )
    assert code == 2
    assert "2,000,000" in said


@pytest.mark.parametrize("name", [
    "a$(touch ran)", "a;touch ran", "`touch ran`", "a'b", 'a"b', "a b", "a: b", "- x", "!!python/object:os.system", "#c",
    "a\u2028b", "a,b", "n[0-3]", "null", "../../x", "a\tb", "é", "-rf", "a&touch ran", "a|touch ran",
])  # fmt: skip
@pytest.mark.parametrize("where", ["queue", "node", "rack"])
def test_names_stay_names_in_files_that_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, where: str
) -> None:
    queue, node, rack = (
        name if where == one else usual for one, usual in (("queue", "q"), ("node", "n"), ("rack", "r"))
    )
    queues = _table(tmp_path / "queues.csv", {"queue": queue, "nominal": "8"})
    nodes = _table(tmp_path / "nodes.csv", {"name": node, "gpus": "8", "rack": rack})
    jobs = _table(tmp_path / "jobs.csv", {"job": "a", "submit_s": "0", "duration_s": "10", "gpus": "8", "queue": queue})
    out = tmp_path / "out"
    _ask(capsys, "--nodes", nodes, "--queues", queues, "--jobs", jobs, "--export", str(out))
    for path in out.glob("*.yaml"):
        assert list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    if (out / "topology.conf").exists():
        text = (out / "topology.conf").read_text(encoding="utf-8").splitlines()
        assert all(line.startswith(("# ", "SwitchName=")) for line in text)
        assert all(len(line.split()) == 2 for line in text if line.startswith("Switch"))
    if (out / "reservations.sh").exists():
        words = shlex.split((out / "reservations.sh").read_text(encoding="utf-8"))
        assert f"ReservationName={queue}" in words
        subprocess.run(
            ["bash", "-c", "scontrol() { :; }; . out/reservations.sh"], cwd=tmp_path, check=True, capture_output=True
        )
    assert not (tmp_path / "ran").exists()


def test_files_that_cannot_be_read_say_why_and_what_to_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "jobs.gz"
    damaged.write_bytes(b"\x1f\x8b\x00broken")
    for path, why in ((tmp_path, "Is a directory"), (damaged, "it is damaged")):
        assert main(["simulate", "cluster", "--nodes", "4x8", "--jobs", str(path)]) == 2
        told = capsys.readouterr().err
        assert f"cannot be read: {why}; give a file of jobs, nodes or queues" in told
        assert told.count("\n") == 1
