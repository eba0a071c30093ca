"""The command from end to end on the smallest preset."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

pytest.importorskip("torch")

from trilemma.cli.main import main
from trilemma.report.schemas import schema_of


def test_smoke_preset_in_every_rendering(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    words = ["precision", "train-lab", "--preset", "smoke", "--workers", "1", "--seeds", "0,1", "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "trilemma/train-lab@1"
    jsonschema.validate(document, schema_of("train-lab"))
    (regime,) = document["regimes"]
    found = {one["recipe"]: one for one in regime["recipes"]}
    assert found["bf16"]["outcome"] == "reference"
    assert found["naive"]["gap"] > 0.2
    assert abs(found["current"]["gap"]) < 0.1
    assert found["naive"]["earliest_alarm"]["signal"] == "overflows%"
    assert regime["mitigations"]["naive"][0]["recipe"] == "current"
    first = next(run for run in document["runs"] if run["recipe"] == "naive")
    assert len(first["losses"]) == 8
    assert first["probes"][0]["worst"]["x.overflows%"]["value"] > 0.1
    full = json.loads((tmp_path / "lab.json").read_text(encoding="utf-8"))
    jsonschema.validate(full, schema_of("train-lab"))
    tensors = next(run for run in full["runs"] if run["recipe"] == "naive")["probes"][0]["tensors"]
    assert {"sqnr_db", "underflows%", "overflows%", "mse"} <= set(tensors["head.x"])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "naive" in page
    lines = [json.loads(line) for line in (tmp_path / "loss-naive.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["seed"], line["step"]) for line in lines] == [(seed, step) for seed in (0, 1) for step in range(8)]


def test_table_and_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["precision", "train-lab", "--preset", "smoke", "--workers", "1", "--steps", "3", "--lr", "1e-3,2e-3"]
    assert main([*words, "--explain"]) == 0
    text = capsys.readouterr().out
    assert text.count("  reference  ") == 2
    assert "one seed, so its noise is not known" in text
    assert "gradient cosine below" in text


def test_worker_processes_give_the_same_numbers() -> None:
    from trilemma.precision.lab.matrix import run_matrix
    from trilemma.precision.lab.presets import PRESETS, sweep

    jobs = sweep(PRESETS["smoke"], steps=2).jobs()[:2]
    here, there = (run_matrix(jobs, workers=workers) for workers in (1, 2))
    assert [run.losses for run in here] == [run.losses for run in there]
    assert [run.recipe.name for run in there] == [job.recipe.name for job in jobs]
