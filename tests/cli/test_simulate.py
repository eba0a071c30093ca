"""``trilemma simulate serving`` as people meet it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import trilemma as tl
from trilemma.cli.main import main

PLAN = ["simulate", "serving", "llama-3.1-8b", "--gpu", "h100-sxm"]
DRAWN = ["--arrivals", "poisson:5", "--isl", "lognormal:500:1", "--osl", "uniform:10:200", "--requests", "120"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    code = main([*PLAN, *words, "--json"])
    out = capsys.readouterr().out
    assert code in (0, 1)
    return json.loads(out) | {"code": code}


def test_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *DRAWN)
    assert found["schema"] == "trilemma/simulation@1"
    assert (found["requests"], found["completed"], found["rejected"], found["code"]) == (120, 120, 0, 0)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        figures = found["metrics"][name]
        assert figures["p50"] <= figures["p90"] <= figures["p95"] <= figures["p99"]
        assert found["bounds"]["low"][name]["p99"] < figures["p99"] < found["bounds"]["high"][name]["p99"]
    assert found["cache"]["block_hit_rate"] == 0
    assert 0 < found["cache"]["peak_share"] < 1
    for name in ("seconds_simulated", "output_tokens_per_s", "requests_per_s", "wall_s"):
        assert found[name] > 0
    assert found["preemptions"] == 0


def test_python_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *DRAWN)
    same = tl.simulate(
        "llama-3.1-8b", "h100-sxm", arrivals="poisson:5", isl="lognormal:500:1", osl="uniform:10:200", requests=120
    ).to_dict()
    assert same["metrics"] == found["metrics"]


def test_near_no_load_the_mean_is_that_of_fit(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--arrivals", "constant:0.05", "--isl", "1000", "--osl", "200", "--requests", "10")
    fit = tl.fit("llama-3.1-8b", "h100-sxm", isl=1000, osl=200, concurrency=1, max_seqs=1024).to_dict()["speed"]
    assert found["metrics"]["tpot_ms"]["mean"] == pytest.approx(fit["tpot_ms"]["value"], rel=0.01)


def test_a_line_for_each_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, lines = tmp_path / "r.csv", tmp_path / "r.jsonl"
    answer(capsys, *DRAWN, "--per-request", str(table), "--no-bounds")
    answer(capsys, *DRAWN, "--per-request", str(lines), "--no-bounds")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    same = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(rows) == len(same) == 120
    assert {int(row["request"]) for row in rows} == set(range(120))
    assert [float(row["finish_s"]) for row in rows] == [row["finish_s"] for row in same]
    assert all(row["arrival_s"] <= row["first_token_s"] <= row["finish_s"] for row in same)


def test_targets_that_are_missed_are_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *DRAWN, "--ttft", "1", "--no-bounds")
    assert found["code"] == 1
    assert found["goodput"]["share"] == 0
    assert answer(capsys, *DRAWN, "--ttft", "10s", "--tpot", "1s", "--no-bounds")["goodput"]["share"] == 1


def test_requests_longer_than_the_context_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *DRAWN, "--context", "600", "--no-bounds")
    assert 0 < found["rejected"] < 120
    assert found["rejected"] + found["completed"] == 120


def test_several_engines_share_the_load(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "serving", "llama-3.1-8b", "--gpu", "h100-sxm:2", "--replicas", "2", *DRAWN, "--no-bounds"]
    for router in ("round-robin", "least-loaded", "prefix-aware"):
        assert main([*words, "--router", router, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["engines"], found["completed"]) == (2, 120)


@pytest.mark.parametrize("engine", ["vllm@0.7.3", "vllm@0.15.1", "sglang", "tensorrt-llm", "vllm"])
def test_each_engine_has_its_scheduler(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *DRAWN, "--engine", engine, "--no-bounds")
    assert found["completed"] == 120


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, *DRAWN]) == 0
    out = capsys.readouterr().out
    for words in ("first token", "P99", "120 of 120 requests answered", "preemptions", "per million output tokens"):
        assert words in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give --trace FILE or --arrivals"),
        (["--arrivals", "poisson:1"], "--isl is missing"),
        (["--arrivals", "often", "--isl", "5", "--osl", "5"], "--arrivals 'often' is not known"),
        (["--arrivals", "poisson:1", "--isl", "x", "--osl", "5"], "--isl"),
        (["--trace", "/nowhere.csv"], "cannot read the trace"),
        ([*DRAWN, "--router", "random"], "--router 'random' is not known"),
        ([*DRAWN, "--policy", "fair"], "unknown policy 'fair'"),
        ([*DRAWN, "--timeout", "0"], "--timeout 0 is out of range"),
        ([*DRAWN, "--per-request", "/nowhere/at/all"], "cannot be written"),
        ([*DRAWN, "--scale-rate", "0", "--trace", "x"], "both state"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, *words]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1
