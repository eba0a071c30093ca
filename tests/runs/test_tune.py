"""What to try next, and runs as Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trilemma as tl
from trilemma.cli.main import main

ASKED = {"seq": 4096, "global_batch": 64}
WORDS = "runs tune llama-3.1-8b --gpu h100-sxm:8 --seq 4096 --global-batch 64"


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """The second best plan was run, and reached 80 % of what was said of it."""
    path = str(tmp_path / "runs.db")
    plans = tl.plan("llama-3.1-8b", "h100-sxm:8", **ASKED, top=20).plans
    said = plans[1].to_dict()["speed"]["tokens_per_s_per_gpu"]["value"]
    with tl.record("second", ledger=path, model="llama-3.1-8b", estimate=plans[1]) as run:
        run.figure(tokens_per_s_per_gpu=0.8 * said)
    return path


def test_the_next_try_is_the_best_that_was_not_tried(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS.split(), "--ledger", ledger, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reached"] == pytest.approx(0.8)
    plans = [one.to_dict() for one in tl.plan("llama-3.1-8b", "h100-sxm:8", **ASKED, top=20).plans]
    best, second = (one["speed"]["tokens_per_s_per_gpu"]["value"] for one in plans[:2])
    first = found["tries"][0]
    assert first["predicted"] == pytest.approx(best, rel=1e-5)
    assert first["gain"] == pytest.approx(best / second - 1, abs=1e-5)  # both reach 80 %
    assert second not in [one["predicted"] for one in found["tries"]]
    assert first["low_gain"] < first["gain"] < first["high_gain"]
    assert main([*WORDS.split(), "--ledger", ledger, "--least", "9"]) == 1
    assert "reached 80%" in capsys.readouterr().out


def test_nothing_recorded_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "runs.db")
    with tl.record("x", ledger=path, model="llama-3.1-8b") as run:
        run.figure(step_s=1.0)
    assert main([*WORDS.split(), "--ledger", path]) == 2
    assert "tells tokens_per_s_per_gpu" in capsys.readouterr().err


def test_parquet(ledger: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = str(tmp_path / "runs.parquet")
    assert main(["runs", "export", "--to", "parquet", "-o", file, "--ledger", ledger]) == 0
    (row,) = parquet.read_table(file).to_pylist()
    assert row["name"] == "second"
    assert row["figure.tokens_per_s_per_gpu"] > 1000
    assert main(["runs", "export", "--to", "parquet", "--ledger", ledger]) == 2
    assert "-o FILE" in capsys.readouterr().err
