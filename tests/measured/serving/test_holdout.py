"""Held-out refits: what a group measured must not reach the coefficients it is judged by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.main import main
from trilemma.engines.coefficients import shipped
from trilemma.engines.vllm.facts import for_version
from trilemma.measured import Row, read_table
from trilemma.measured.serving.memory.fit import refit
from trilemma.measured.serving.memory.question import read_question

SAMPLE = Path(__file__).parents[2] / "data" / "serving_memory_sample.csv"
LOGS = "https://github.com/llm-d-incubation/llm-d-planner/pull/205"


def refitted(rows: list[Row]) -> tuple[dict[int, Any], dict[str, Any]]:
    return refit(rows, [read_question(row, None) for row in rows], ["source"])


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row for row in read_table(SAMPLE).rows if row.id not in ("sglang-235b", "no-model")]


@pytest.mark.slow
def test_a_group_cannot_see_its_own_measurements(rows: list[Row]) -> None:
    held = next(index for index, row in enumerate(rows) if row.text("source") == LOGS)
    other = next(index for index, row in enumerate(rows) if row.text("source") != LOGS)
    before, _ = refitted(rows)
    spoiled = [
        replace(row, cells={**row.cells, "activation_peak_gib": "30", "non_torch_gib": "9"})
        if row.text("source") == LOGS and row.text("activation_peak_gib")
        else row
        for row in rows
    ]
    after, _ = refitted(spoiled)
    assert after[held] == before[held]
    assert after[other] != before[other]


@pytest.mark.slow
def test_the_document_names_groups_and_terms(rows: list[Row]) -> None:
    coefficients, document = refitted(rows)
    assert document["columns"] == ["source"]
    assert document["groups"] == len({row.text("source") for row in rows})
    assert "non_torch_gib.alone since 0.17" in document["terms"]
    # what several ranks of linked cards add stands in one campaign's logs alone: without them nothing tells it
    assert any(term.startswith("non_torch_gib.") and count == 1 for term, count in document["uninformed"].items())
    assert set(coefficients) == set(range(len(rows)))


def test_spellings_of_one_card_and_model_are_one_group(rows: list[Row]) -> None:
    row = next(row for row in rows if row.id == "llama31-8b-tp1")
    cells = {"gpu": "h100_sxm", "model": "Llama 3.1 8B Instruct"}
    other = replace(row, cells={**row.cells, **cells})
    pair = [row, other]
    _, document = refit(pair, [read_question(one, None) for one in pair], ["model", "gpu"])
    assert document["groups"] == 1


@pytest.mark.slow
def test_shipped_coefficients_come_back(rows: list[Row]) -> None:
    before = json.dumps(shipped("vllm.toml"), default=str)
    refitted(rows)
    assert json.dumps(shipped("vllm.toml"), default=str) == before
    changed = {"vllm.toml": [{"activations_gib": 7.0}]}
    own = {"vllm.toml": {"spread": changed["vllm.toml"]}}
    assert for_version("0.33", changed=own).coefficients == {"spread": {"activations_gib": 7.0}}
    assert for_version("0.33").coefficients["spread"]["activations_gib"] == 0.45


@pytest.mark.slow
def test_holdout_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["validate", str(SAMPLE), "--holdout", "source,gpu", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["holdout"]["columns"] == ["source", "gpu"]
    assert document["metrics"]["weights_gib_per_gpu"]["median_ape"] <= 0.01
