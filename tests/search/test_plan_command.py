"""``trilemma plan`` and ``trilemma compare`` from the outside."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest

from trilemma.cli.main import main
from trilemma.data.digest import DATA

JOB = ["plan", "llama-3.1-70b", "--gpu", "h200-sxm:8", "--serve", "4096/1024"]


def test_the_main_job_prints_plans_with_everything_needed(capsys):
    assert main(JOB) == 0
    out = capsys.readouterr().out
    assert "▕" in out
    assert "▏ 9" in out
    for words in (
        "tok/s/GPU",
        "$/M tok",
        "bound by",
        "vllm serve meta-llama/Llama-3.1-70B",
        "why the others lost",
        "assumed:",
    ):
        assert words in out


def test_json_obeys_its_schema(capsys):
    assert main([*JOB, "--json", "--top", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    schema = json.loads((DATA / "schemas" / "plans.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    assert document["schema"] == "trilemma/plans@1"
    assert all(0 <= at < len(document["plans"]) for at in document["pareto"])
    assert all(plan["fits"] for plan in document["plans"])
    assert document["searched"] >= document["legal"] >= document["fitting"] > 0


@pytest.mark.slow
def test_exit_codes_say_yes_no_and_bad_input(capsys):
    assert main([*JOB, "--tpot", "1"]) == 1
    assert "NO PLAN MEETS THE TARGETS" in capsys.readouterr().out
    assert main(["plan", "llama-3.1-405b", "--gpu", "rtx-4090:1", "--serve", "1024/128"]) == 1
    out = capsys.readouterr().out
    assert "no plan fits" in out
    assert "what would make it fit" in out


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--serve", "4096"], "ISL/OSL"),
        (["--serve", "0/10"], "--isl 0"),
        (["--tp", "3"], "--tp 3 does not divide the 8 GPUs"),
        (["--gpu", "h200-sxm:0"], "0"),
        (["--gpu", "h900:8"], "h900"),
        (["--precision", "fp9"], "fp9"),
        (["--precision", ","], "--precision"),
        (["--kv-dtype", "fp99"], "fp99"),
        (["--top", "1000000"], "--top"),
        (["--tpot", "-5"], "--tpot"),
        (["--concurrency", "8", "--rate", "2"], "give one of them"),
        (["--context", "100"], "--context 100 is shorter"),
        (["--engine", "nonesuch"], "nonesuch"),
    ],
)
def test_bad_input_is_one_line(changed, words, capsys):
    flag = changed[0]
    base = JOB.copy()
    if flag in base:
        at = base.index(flag)
        del base[at : at + 2]
    assert main([*base, *changed]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error


FP8 = ["plan", "llama-3.1-70b-fp8", "--serve", "4096/1024", "--ttft", "1000", "--tpot", "40"]


def test_pools_apart_are_readable_and_counted(capsys):
    assert main([*FP8, "--gpu", "h100-sxm:8", "--pools", "disaggregated"]) == 0
    out = capsys.readouterr().out
    for words in (
        "1 × TP4 prefill + 1 × TP4 decode",
        " of them: vllm serve",
        "decode, 1 of them: vllm serve",
        "TTFT, holds",
        "prefill cannot keep up with decode",
        "is taken to travel over NVLink",
    ):
        assert words in out
    assert main([*FP8, "--gpu", "h100-sxm:8", "--pools", "aggregated"]) == 0
    assert "prefill" not in capsys.readouterr().out


def test_pools_apart_in_json_obey_the_schema_and_export(capsys, tmp_path):
    assert main([*FP8, "--gpu", "h100-sxm:8", "--pools", "disaggregated", "--json"]) == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    jsonschema.validate(document, json.loads((DATA / "schemas" / "plans.schema.json").read_text(encoding="utf-8")))
    best = document["plans"][0]
    assert [rank["pool"] for rank in best["ranks"]] == ["prefill", "decode"]
    chances = {one["name"]: one["probability"] for one in best["targets"]}
    assert 0 < chances["ttft"] < chances["tpot"] <= 1
    (tmp_path / "plans.json").write_text(text)
    assert main(["export", str(tmp_path / "plans.json"), "--to", "vllm", "-o", str(tmp_path / "out")]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"serve-prefill-1.sh", "serve-decode-1.sh", "router.sh"} <= names


@pytest.mark.slow
def test_the_number_of_gpus_is_searched_where_none_is_given(capsys):
    assert main([*FP8, "--gpu", "h100-sxm", "--rate", "20", "--pools", "aggregated"]) == 0
    out = capsys.readouterr().out
    for words in (
        "any number of H100",
        "fewest GPUs that carry this load",
        "most tokens for each GPU",
        "behind a router",
    ):
        assert words in out
    assert main([*FP8, "--gpu", "h100-sxm", "--rate", "20", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    best = document["plans"][document["least_gpus"]["plan"]]
    assert best["inputs"]["cluster"]["gpus"] == document["least_gpus"]["gpus"] > 8
    assert best["speed"]["output_tokens_per_s"]["value"] == pytest.approx(20 * 1024)
    cheapest = document["plans"][document["cheapest"]["plan"]]["cost"]["usd_per_million_tokens"]
    assert cheapest == document["cheapest"]["usd_per_million_tokens"]
    assert cheapest == min(plan["cost"]["usd_per_million_tokens"] for plan in document["plans"][:5])


def test_a_count_or_nodes_fix_the_number_of_gpus(capsys):
    for gpu in (["h100-sxm:4"], ["h100-sxm:16", "--nodes", "2"]):
        assert main([*FP8, "--gpu", *gpu, "--json", "--top", "1"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert "least_gpus" not in document
        assert document["plans"][0]["inputs"]["cluster"]["gpus"] == int(gpu[0].partition(":")[2])


def test_pools_of_engines_without_them_are_bad_input(capsys):
    assert main([*FP8, "--gpu", "h100-sxm:8", "--engine", "llama.cpp", "--pools", "disaggregated"]) == 2
    assert "llama.cpp has no prefill and decode pools" in capsys.readouterr().err
    assert main([*FP8, "--gpu", "h100-sxm:8", "--pools", "apart"]) == 2
    assert "--pools" in capsys.readouterr().err


def test_the_real_entry_point_searches_pools_apart():
    command = [sys.executable, "-m", "trilemma", *FP8, "--gpu", "h100-sxm:8", "--top", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["plans"][0]["inputs"]["plan"]["summary"] == "TP4 DP2"


@pytest.mark.slow
def test_compare_puts_cards_side_by_side(capsys, monkeypatch):
    # wide enough that no cell goes over several lines
    monkeypatch.setenv("COLUMNS", "300")
    cards = ["--gpu", "b300-sxm:1", "--gpu", "mi300x:1", "--gpu", "h100-sxm:1"]
    arguments = ["compare", "llama-3.1-70b", *cards, "--serve", "1024/1024", "--tpot", "50"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for words in (
        "fp8 (FNUZ)",
        "fp8 (OCP)",
        "usable GiB",
        "$/M tok",
        "J/tok",
        "fits as published from 2 GPUs",
        "price of H100",
    ):
        assert words in out
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "trilemma/comparison@1"
    b300, mi300x, h100 = document["candidates"]
    assert b300["best"]["speed"]["tpot_ms"]["value"] <= 50
    assert mi300x["fp8_flavour"] == "fnuz"
    assert h100["least_gpus"] == 2
    assert "published" not in h100


def test_compare_where_nothing_fits_says_no(capsys):
    assert main(["compare", "llama-3.1-405b", "--gpu", "rtx-4090:1", "--serve", "1024/128"]) == 1
    assert "does not fit" in capsys.readouterr().out
