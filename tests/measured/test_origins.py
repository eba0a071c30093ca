"""Who published a row, what is assumed where it is silent, and its whole name in what is written."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.measured.tables import origin_of, read_table

LONG = "N10-ifx-20218553330-b200-gptoss-vllm-fp4-8192x1024-c8-tp2ep1-a-name-longer-than-eighty-characters-ttft"
HEAD = "id,source_ref,model,precision_weights,gpu,gpus,tp,engine,version,isl,osl,concurrency_or_batch,metric,value,tier"


def table(tmp_path: Path) -> Path:
    """Three rows of two origins, one of them without a prompt length."""
    path = tmp_path / "speed.csv"
    lines = [
        f"{LONG},one/bench@72ff84eb:runs/a.json (of run 7),gpt-oss-120b,fp4,b200_sxm,2,2,vllm,0.11.2,8192,1024,8,ttft_ms,101,A",
        "short,one/bench@99:runs/b.json,gpt-oss-120b,fp4,b200_sxm,2,2,vllm,0.11.2,8192,1024,8,tpot_ms,5,A",
        "silent,https://elsewhere.example/post,gpt-oss-120b,fp4,b200_sxm,2,2,vllm,,,1024,8,tpot_ms,5,B",
    ]
    path.write_text("\n".join([HEAD, *lines]))
    return path


def test_an_origin_is_the_first_word_without_revision_and_file(tmp_path: Path):
    assert origin_of("ml-energy/leaderboard@0cd52dab:public/data/tasks/lm-arena-chat.json") == "ml-energy/leaderboard"
    assert origin_of("https://elsewhere.example/post (read in May)") == "https://elsewhere.example/post"
    assert origin_of("") == ""
    read = read_table(table(tmp_path))
    assert read.columns[-1] == "origin"
    assert [row.text("origin") for row in read.rows] == ["one/bench", "one/bench", "https://elsewhere.example/post"]


def test_errors_by_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["validate", str(table(tmp_path)), "--by", "origin"]) == 0
    gathered = capsys.readouterr().out.split("error of")[-1]
    assert "one/bench" in gathered
    assert "tpot_ms" in gathered
    assert main(["validate", str(table(tmp_path)), "--where", "origin=one/bench", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["used"] == 2
    assert {"origin=one/bench", "distance=own deployment", "era=vllm 0.11"} <= set(document["by"])
    assert main(["validate", str(table(tmp_path)), "--by", "orgin"]) == 2
    assert "origin" in capsys.readouterr().err


def test_a_prompt_length_may_be_assumed_and_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["validate", str(table(tmp_path)), "--json"]
    main(words)
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["skipped"]] == ["silent"]
    assert main([*words, "--assume", "isl=150"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["used"] == 3
    told = {one["id"]: one["what"] for one in document["assumed"]}
    assert "isl 150: assumed" in told["silent"]
    assert not any("isl" in what for what in told.get("short", ()))
    assert main([*words, "--assume", "isl"]) == 2
    assert "COLUMN=VALUE" in capsys.readouterr().err


def test_rows_keep_their_whole_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    written = tmp_path / "rows.csv"
    assert main(["validate", str(table(tmp_path)), "--rows", str(written), "--json"]) == 0
    capsys.readouterr()
    with written.open(newline="") as file:
        assert LONG in {line["id"] for line in csv.DictReader(file)}


@pytest.mark.slow
def test_left_out_by_a_combination_with_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert (
        main(
            [
                "validate",
                str(table(tmp_path)),
                "--holdout",
                "model,precision,gpu,engine,origin",
                "--assume",
                "isl=150",
                "--json",
            ]
        )
        == 0
    )
    held = json.loads(capsys.readouterr().out)["holdout"]
    assert held["columns"] == ["model", "precision", "gpu", "engine", "origin"]
    assert held["groups"] == 2
