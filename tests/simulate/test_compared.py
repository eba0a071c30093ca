"""The same requests under two configurations, and plans of a search ranked by what a trace's users see."""

from __future__ import annotations

import csv
import json

import pytest

import trilemma as tl
from trilemma.cli.main import main
from trilemma.errors import InputError

MODEL = "llama-3.1-8b"
TRAFFIC = {"arrivals": "poisson:20", "isl": 1000, "osl": 200, "requests": 300, "bounds": False}


def test_the_other_run_is_what_it_would_be_alone() -> None:
    both = tl.simulate(MODEL, "h100-sxm:2", replicas=2, compare="tp=2", **TRAFFIC).to_dict()
    alone = tl.simulate(MODEL, "h100-sxm:2", tp=2, **TRAFFIC).to_dict()
    assert both["compared"]["metrics"] == alone["metrics"]
    assert both["compared"]["inputs"]["layout"]["tp"] == 2
    assert both["compared"]["cost"] == alone["cost"]
    assert both["compared"]["quicker_share"] > 0.9


def test_the_same_configuration_is_quicker_for_nobody() -> None:
    told = tl.simulate(MODEL, "h100-sxm", compare={"policy": "token-budget"}, **TRAFFIC).to_dict()
    assert told["compared"]["quicker_share"] == 0
    assert told["compared"]["metrics"] == told["metrics"]


def test_the_screen_says_what_the_other_changes(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "simulate",
        "serving",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm",
        "--arrivals",
        "poisson:4",
        "--isl",
        "512",
        "--osl",
        "64",
        "--requests",
        "50",
    ]
    assert main([*words, "--compare", "max_seqs=2 engine=sglang"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "with max_seqs 2, engine sglang" in told
    assert "of the requests answered in both" in told
    assert main([*words, "--compare", "--max-seqs 2"]) == 2
    assert "behind --compare write max_seqs=2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "changes nothing"),
        ("tp", "NAME=VALUE"),
        ("isl=5", "same requests"),
        ("nonsense=5", "nonsense"),
        ("'tp=2", "cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_named(words: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        tl.simulate(MODEL, "h100-sxm:2", replicas=2, compare=words, **TRAFFIC)


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "requests.csv"
    with file.open("w", newline="") as held:
        lines = csv.writer(held)
        lines.writerow(["arrival", "input", "output"])
        # bursts of six every two seconds
        lines.writerows([2.0 * (at // 6), 1500 + 100 * (at % 6), 40] for at in range(240))
    return file


def test_plans_are_ranked_by_what_users_see(trace) -> None:
    found = tl.plan(MODEL, "h100-sxm:2", trace=trace, ttft=800, tpot=40)
    plans = found.to_dict()["plans"]
    assert found.fits
    assert len({(one["layout"], one["precision"], one["kv_format"]) for one in plans}) == len(plans) >= 2
    standing = [(not one["holds"], one["usd_per_hour"], one["metrics"]["e2e_ms"]["p99"]) for one in plans]
    assert standing == sorted(standing)
    assert all(one["completed"] == 240 for one in plans)
    # a burst of six prompts makes tails that the mean load does not have
    assert plans[0]["metrics"]["ttft_ms"]["p99"] > plans[0]["metrics"]["ttft_ms"]["p50"]


def test_no_plan_holds_what_bursts_forbid(trace, capsys) -> None:
    assert main(["plan", MODEL, "--gpu", "h100-sxm", "--trace", str(trace), "--ttft", "30", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "trilemma/replayed-plans@1"
    assert all(not one["holds"] for one in document["plans"])


def test_a_trace_takes_the_place_of_a_load(trace, capsys) -> None:
    assert main(["plan", MODEL, "--gpu", "h100-sxm", "--trace", str(trace), "--serve", "100/100"]) == 2
    assert "leave one of them out" in capsys.readouterr().err
    assert main(["plan", MODEL, "--gpu", "h100-sxm"]) == 2
    assert "--serve is missing" in capsys.readouterr().err
    assert main(["plan", MODEL, "--gpu", "h100-sxm", "--trace", str(trace)]) == 0
    assert "P99 TTFT" in capsys.readouterr().out
