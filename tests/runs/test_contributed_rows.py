"""Rows to give away: `validate` judges them, and nothing in them tells whose they are."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.runs.run import LedgerRun
from trilemma.runs.store import RunLedger

_PRIVATE = ("bob", "secret", "/home", "deadbeef", "host-7")


def keep(path: Path, *runs: LedgerRun) -> None:
    with RunLedger(path) as ledger:
        for run in runs:
            ledger.add(run)


def run(estimate: dict[str, object], **figures: float) -> LedgerRun:
    return LedgerRun(
        name="bob's secret run", started_s=1_790_000_000.0, model="/home/bob/model", gpu="h100", git="deadbeef", tags=("secret",),
        config={"path": "/home/bob"}, machine={"host": "host-7"}, figures=figures, estimate=estimate,
    )  # fmt: skip


def exported(path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[dict[str, str]]]:
    assert main(["runs", "export", "--to", kind, "--ledger", str(path)]) == 0
    told = capsys.readouterr()
    return told.err, list(csv.DictReader(io.StringIO(told.out)))


def test_rows_of_serving_are_judged_and_nobodys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, table = tmp_path / "runs.db", tmp_path / "rows.csv"
    answer = tl.fit("qwen3-8b", "h100-sxm:2", tp=2, isl=1024, osl=128, concurrency=8)
    strange = json.loads(json.dumps(answer.to_dict()).replace("qwen3-8b", "/home/bob/secret-8b"))
    keep(path, run(answer.to_dict(), ttft_ms=70.0, tpot_s=0.006), run(strange, ttft_ms=1.0), run({}, ttft_ms=1.0))
    said, rows = exported(path, "serving-rows", capsys)
    assert said.startswith("2 runs left out")
    assert [(row["metric"], row["value"]) for row in rows] == [("ttft_ms", "70"), ("tpot_ms", "6")]
    assert rows[0]["gpu"] == "nvidia-h100-sxm5-80gb"
    assert (rows[0]["tp"], rows[0]["isl"], rows[0]["concurrency_or_batch"], rows[0]["date"]) == (
        "2",
        "1024",
        "8",
        "2026-09",
    )
    main(["runs", "export", "--to", "serving-rows", "--ledger", str(path)])
    table.write_text(capsys.readouterr().out)
    assert not any(word in table.read_text() for word in _PRIVATE)
    assert main(["validate", str(table), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["used"] == 2
    said_s = answer.speed.tpot_s.interval.value
    assert judged["metrics"]["tpot_ms"]["bias"] == pytest.approx(said_s / 0.006 - 1, abs=0.02)


def test_rows_of_training_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, table = tmp_path / "runs.db", tmp_path / "rows.csv"
    answer = tl.fit("qwen3-8b", "h100-sxm:8", seq=4096, global_batch=64, zero=3)
    step = answer.speed.step_s.interval.value
    keep(path, run(answer.to_dict(), step_s=step, loss=2.0))
    _, rows = exported(path, "training-rows", capsys)
    assert [row["measured_metric"] for row in rows] == ["iteration_s"]
    assert (rows[0]["fsdp_or_zero"], rows[0]["precision"], rows[0]["global_batch"]) == ("ZeRO-3", "bf16", "64")
    main(["runs", "export", "--to", "training-rows", "--ledger", str(path)])
    table.write_text(capsys.readouterr().out)
    assert main(["validate", str(table), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["metrics"]["iteration_s"]["median_ape"] < 0.25  # a row holds fewer options than a plan


def test_rows_of_plans_that_were_kept_are_judged_as_those_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recipe, overlap, recomputed parts and framework stand in the row: what was predicted comes out again."""
    path, table = tmp_path / "runs.db", tmp_path / "rows.csv"
    plans = tl.plan("llama-3.1-8b", "h100-sxm:8", seq=4096, global_batch=64, top=5).plans
    keep(path, *(run(plan.to_dict(), step_s=plan.speed.step_s.interval.value) for plan in plans))
    _, rows = exported(path, "training-rows", capsys)
    assert {row["precision"] for row in rows} == {"fp8-bf16-grads"}
    assert all("grad-reduce overlap" in row["notes"] for row in rows)
    main(["runs", "export", "--to", "training-rows", "--ledger", str(path)])
    table.write_text(capsys.readouterr().out)
    assert main(["validate", str(table), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["metrics"]["iteration_s"]
    assert told["median_ape"] < 0.05
    assert told["coverage90"] == 1.0


def test_a_ledger_without_such_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "runs.db", run({}, loss=1.0))
    assert main(["runs", "export", "--to", "training-rows", "--ledger", str(tmp_path / "runs.db")]) == 2
    assert "no run of the ledger holds figures of training" in capsys.readouterr().err
