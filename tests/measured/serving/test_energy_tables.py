"""Energy tables: rates as rows of serving speed, watts by what the cards do, joules from our rate and from the stated one."""

from __future__ import annotations

import csv
import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.hardware.catalogue import find
from trilemma.measured.serving.energy.judge import fit_energy_rows, judge
from trilemma.measured.tables import Row

#: Mean power over the run, argonne-lcf/LLM-Inference-Bench@4211f5d4 Plots/Fig_16_a_b/power_results.csv.
A100 = {
    "model": "meta-llama/Meta-Llama-3-8B", "precision": "fp16", "gpu": "a100", "gpus": "1", "tp": "1", "engine": "vllm",
    "isl": "1024", "osl": "1024", "max_batch": "16", "avg_batch": "16", "output_tok_s_total": "822.72",
    "power_w_per_gpu": "264.29", "j_per_output_token": "0.3212",
}  # fmt: skip


def row(**cells: str) -> Row:
    told = {**A100, **cells}
    return Row(id="row", line=1, cells={name: value for name, value in told.items() if value})


def test_watts_lie_between_idle_and_the_limit_and_joules_follow_from_either_rate() -> None:
    ((one,), _) = judge([row()])
    figures = {figure.metric: figure for figure in one.comparisons}
    rate, watts, joules = (figures[name] for name in ("output_tok_s_total", "power_w_per_gpu", "j_per_output_token"))
    given = figures["j_per_output_token_given_rate"]
    limit = find("a100-sxm4-80gb").tdp_w
    assert limit is not None
    assert rate.measured == 822.72
    assert 0.2 * limit.value < watts.predicted < limit.value
    assert (watts.low or 0) < 264.29 < (watts.high or 0) <= limit.value
    assert joules.predicted == pytest.approx(watts.predicted / rate.predicted)
    assert given.predicted == pytest.approx(0.3212, rel=0.2)
    assert (given.high or 0) / given.predicted <= (joules.high or 0) / joules.predicted


#: model, card, GPUs, TP, EP, precision, output tokens, requests in flight, tokens/s, watts a GPU, joules a token, of
#: prompts that nobody states (vLLM 0.11.1, steady state): ml-energy/leaderboard@0cd52dab public/data/tasks/lm-arena-chat.json.
ML_ENERGY = """
Qwen/Qwen3-235B-A22B-Instruct-2507 B200 4 1 4 bfloat16 869.4 15.984 636.59 724.18 4.55038
Qwen/Qwen3-235B-A22B-Instruct-2507 B200 8 1 8 bfloat16 880.1 127.828 3305.95 624.94 1.51227
Qwen/Qwen3-235B-A22B-Instruct-2507 H100 8 1 8 bfloat16 863.0 127.844 2626.40 487.93 1.48623
Qwen/Qwen3-30B-A3B-Instruct-2507 H100 2 1 2 bfloat16 918.6 127.863 4546.18 449.84 0.19789
Qwen/Qwen3-8B B200 1 1 1 bfloat16 646.4 15.942 2086.32 532.37 0.25517
google/gemma-3-12b-it H100 1 1 1 bfloat16 723.6 15.97 1082.30 452.30 0.41790
google/gemma-3-27b-it H100 2 2 1 bfloat16 705.3 127.804 3714.02 568.53 0.30615
google/gemma-3-27b-it B200 1 1 1 bfloat16 721.2 15.939 1125.21 799.96 0.71094
meta-llama/Llama-3.1-70B-Instruct H100 4 4 1 bfloat16 354.4 15.954 862.65 450.95 2.09101
meta-llama/Llama-3.1-70B-Instruct H100 4 4 1 bfloat16 358.9 127.61 3876.27 545.94 0.56336
"""
NAMES = (
    "model", "gpu", "gpus", "tp", "ep", "precision", "osl", "avg_batch", "output_tok_s_total", "power_w_per_gpu",
    "j_per_output_token",
)  # fmt: skip


def ml_energy_rows() -> list[Row]:
    told = [dict(zip(NAMES, line.split(), strict=True)) for line in ML_ENERGY.split("\n") if line]
    return [row(**one, isl="", task="lm-arena-chat", dp="1", max_batch="", engine="vllm") for one in told]


def test_joules_of_public_runs() -> None:
    judged, _ = judge(ml_energy_rows())
    given = [figure for one in judged for figure in one.comparisons if figure.metric == "j_per_output_token_given_rate"]
    assert len(given) == 10
    errors = [abs(figure.predicted / figure.measured - 1) for figure in given]
    assert statistics.median(errors) <= 0.12
    assert max(errors) <= 0.30
    assert all((one.low or 0) <= one.measured <= (one.high or 0) for one in given)
    assert all("prompts of 150 tokens: the row does not say" in one.assumed for one in judged)


def test_terms_of_models_left_out_never_saw_them() -> None:
    rows = ml_energy_rows()
    strange = [
        replace(one, cells={**one.cells, "power_w_per_gpu": "100"}) for one in rows if "gemma" in one.cells["model"]
    ]
    calm = [one for one in rows if "gemma" not in one.cells["model"]]
    told, without = ({j.row_id: j for j in judge(some, holdout=["model"])[0]} for some in (rows, [*calm, *strange]))
    assert set(told) == set(without)
    fitted = fit_energy_rows(rows)
    assert (
        fitted.told("Hopper hbm").shares["idle"] > fit_energy_rows([*calm, *strange]).told("Hopper hbm").shares["idle"]
    )
    assert fitted.told("nobody's").shares == fitted.shared.shares


def test_joules_count_every_card() -> None:
    ((one,), _) = judge([row(gpu="h100_sxm", gpus="4", tp="4")])
    figures = {figure.metric: figure.predicted for figure in one.comparisons}
    assert figures["j_per_output_token"] == pytest.approx(
        4 * figures["power_w_per_gpu"] / figures["output_tok_s_total"]
    )


def test_phases_are_rates_of_their_own_and_missing_figures_are_left_out() -> None:
    decode = row(
        engine="llama.cpp", precision="Q4_K_M", phase="decode", isl="0", osl="128", avg_batch="1", j_per_output_token=""
    )  # fmt: skip
    ((one,), _) = judge([decode])
    assert [figure.metric for figure in one.comparisons] == ["decode_tok_s", "power_w_per_gpu"]
    ((bad,), _) = judge([row(power_w_per_gpu="much")])
    assert [figure.metric for figure in bad.comparisons] == ["output_tok_s_total"]
    assert "power_w_per_gpu 'much' is not a number" in bad.left_out[0]


def test_experts_over_all_cards_that_cut_nothing_else() -> None:
    mixture = row(model="Qwen/Qwen3-30B-A3B-Instruct-2507", gpu="h100_sxm", gpus="4", tp="1", ep="4", dp="1")
    ((one,), _) = judge([mixture])
    assert not one.skipped
    assert any("spreads experts over 4 GPUs" in note for note in one.assumed)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "energy.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(A100))
        writer.writeheader()
        writer.writerow(A100)
    assert main(["validate", str(table), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["used"]) == ("energy", 1)
    assert document["metrics"]["power_w_per_gpu"]["coverage90"] == 1.0
    assert document["metrics"]["j_per_output_token_given_rate"]["median_ape"] < 0.2


def test_fitting_the_terms_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, made = tmp_path / "energy.csv", tmp_path / "power.json"
    rows = ml_energy_rows()
    columns = list(dict.fromkeys(name for one in rows for name in one.cells))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(dict(one.cells) for one in rows)
    ask = ["calibrate", "power", str(table), "--source", "here", "--as-of", "2026-11-30", "-o", str(made)]
    assert main(ask) == 0
    assert "10 of 10 rows used, 2 kinds of chips" in capsys.readouterr().out
    found = json.loads(made.read_text(encoding="utf-8"))
    assert set(found["chips"]) == {"Blackwell hbm", "Hopper hbm"}
    assert all(0 <= share < 5 for row in found["chips"].values() for share in row["shares"].values())
    assert main([*ask[:3], "--source", "here", "--as-of", "today", "-o", str(made)]) == 2
