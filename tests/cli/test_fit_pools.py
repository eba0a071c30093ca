"""``trilemma fit`` of plans with several engines, from the outside."""

from __future__ import annotations

import json

import pytest

from trilemma.cli.main import main

FIT = ["fit", "llama-3.1-70b-fp8", "--isl", "4096", "--osl", "1024", "--ttft", "1000", "--tpot", "40"]


def told(capsys, *words):
    code = main([*FIT, *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_plan_of_a_search_has_the_same_figures_by_itself(capsys):
    search = [
        "plan",
        "llama-3.1-70b-fp8",
        "--gpu",
        "h100-sxm:8",
        "--serve",
        "4096/1024",
        "--ttft",
        "1000",
        "--tpot",
        "40",
    ]
    assert main([*search, "--pools", "disaggregated", "--json", "--top", "3"]) == 0
    for plan in json.loads(capsys.readouterr().out)["plans"][:3]:
        prefill, decode = (one.rpartition(" ")[0] for one in plan["inputs"]["plan"]["summary"].split(" + "))
        if plan["inputs"]["model"]["quantization"] == "awq":
            continue  # another checkpoint
        load = ["--concurrency", str(plan["inputs"]["workload"]["concurrency"])]
        load += ["--max-seqs", str(plan["inputs"]["plan"]["pools"][1]["options"]["max_seqs"])]
        code, alone = told(capsys, "--gpu", "h100-sxm:8", "--prefill", prefill, "--decode", decode, *load)
        assert code == 0
        assert alone["speed"] == plan["speed"]
        # the search limits the decode pool alone, the option both: the ledger shown is that of the tighter pool
        assert alone["memory"]["total_bytes"] == pytest.approx(plan["memory"]["total_bytes"], rel=0.02)
        assert alone["targets"] == plan["targets"]


def test_pools_take_as_many_gpus_as_they_need_where_no_number_is_given(capsys):
    code, document = told(capsys, "--gpu", "h100-sxm", "--prefill", "4 × 1 GPU", "--decode", "2xTP2PP2", "--rate", "1")
    assert document["inputs"]["cluster"]["gpus"] == 12
    assert document["inputs"]["plan"]["summary"] == "4 × 1 GPU prefill + 2 × TP2 PP2 decode"
    assert code == 0


def test_a_pool_that_does_not_start_says_no(capsys):
    assert main(["fit", "llama-3.1-70b", "--gpu", "h100-sxm", "--prefill", "4xTP1", "--decode", "TP4"]) == 1
    assert "prefill: loading needs" in capsys.readouterr().out


def test_replicas_side_by_side(capsys):
    _, one = told(capsys, "--gpu", "h100-sxm:4", "--rate", "1")
    code, three = told(capsys, "--gpu", "h100-sxm:12", "--replicas", "3", "--rate", "3")
    assert code == 0
    assert three["inputs"]["plan"]["summary"] == "3 × TP4"
    assert three["speed"]["ttft_ms"] == one["speed"]["ttft_ms"]
    assert three["speed"]["output_tokens_per_s"]["value"] == pytest.approx(3 * 1024)


def test_a_mixture_spreads_its_experts_in_each_pool(capsys):
    pools = ["--prefill", "2xTP1DP4EP4", "--decode", "1xTP1DP8EP8"]
    assert (
        main(
            [
                "fit",
                "gpt-oss-120b",
                "--gpu",
                "h200-sxm:16",
                *pools,
                "--isl",
                "2000",
                "--osl",
                "200",
                "--rate",
                "5",
                "--json",
            ]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"]["plan"]["summary"] == "2 × DP4 EP4 prefill + 1 × DP8 EP8 decode"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--prefill", "2xTP2"], "--decode is missing"),
        (["--prefill", "2xTP2", "--decode", "TP4", "--tp", "2"], "--tp is of a plan without pools"),
        (["--prefill", "2x", "--decode", "TP4"], "is not a number of engines and their layout"),
        (["--prefill", "TP2TP2", "--decode", "TP4"], "gives TP twice"),
        (["--prefill", "TP2EP3", "--decode", "TP4"], "give EP2 or leave it out"),
        (["--prefill", "8xTP2", "--decode", "TP4"], "the pools take 20 GPUs, but --gpu names 8"),
        (["--prefill", "0xTP2", "--decode", "TP4"], "a pool of 0 replicas"),
        (["--prefill", "TP3", "--decode", "TP4"], "--tp 3"),
        (["--prefill", "TP" + "9" * 5000, "--decode", "TP4"], "--prefill"),
        (["--replicas", "3"], "--replicas 3 does not divide the 8 GPUs"),
    ],
)
def test_bad_pools_are_one_line(words, error, capsys):
    assert main([*FIT, "--gpu", "h100-sxm:8", *words]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert error in line
    assert len(line) < 400
