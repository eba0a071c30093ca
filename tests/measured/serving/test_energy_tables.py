"""Energy tables: rates as rows of serving speed, power as the limit of the cards."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.hardware.catalogue import find
from trilemma.measured.serving.energy.judge import judge
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


def test_power_is_told_as_a_limit_and_joules_follow_from_the_rate() -> None:
    ((one,), _) = judge([row()])
    figures = {figure.metric: figure for figure in one.comparisons}
    rate, watts, joules = (figures[name] for name in ("output_tok_s_total", "power_w_per_gpu", "j_per_output_token"))
    limit = find("a100-sxm4-80gb").tdp_w
    assert limit is not None
    assert rate.measured == 822.72
    assert (watts.low, watts.predicted, watts.high) == (0, limit.value, limit.value)
    assert joules.predicted == pytest.approx(limit.value / rate.predicted)
    assert joules.high == pytest.approx(limit.value / (rate.low or 0))
    assert joules.measured < joules.predicted < (joules.high or 0)


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
