"""Every model of the catalogue on cards that are named: the largest first, each within the card, with the engine that runs it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trilemma.ask import here as asking
from trilemma.cli.main import main

_SOME = ("llama-3.1-70b", "qwen3-32b", "llama-3.1-8b", "opt-1.3b", "qwen3-embedding-0.6b", "llama-3.2-1b")


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "names", lambda: _SOME)


def which(capsys: pytest.CaptureFixture[str], gpu: str) -> dict[str, Any]:
    assert main(["which", "--gpu", gpu, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_card_of_24_gb(capsys: pytest.CaptureFixture[str]) -> None:
    found = which(capsys, "rtx-4090")
    runs = {run["model"]: run for run in found["runs"]}
    assert "llama-3.1-70b" not in runs  # 35 GB in four bits
    assert (runs["qwen3-32b"]["engine"], runs["qwen3-32b"]["weights"]) == ("llama.cpp", "q4_k_m")
    assert runs["llama-3.1-8b"]["weights"] == "as published"
    assert runs["opt-1.3b"]["max_context"] == 2048  # shorter than what others are asked for
    sizes = [run["weights_bytes"] for run in found["runs"]]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size < 24 * 2**30 for size in sizes)
    assert "qwen3-embedding-0.6b" not in runs


def test_two_cards_hold_more(capsys: pytest.CaptureFixture[str]) -> None:
    runs = {run["model"]: run for run in which(capsys, "rtx-4090:2")["runs"]}
    assert runs["llama-3.1-70b"]["gpus"] == 2
    assert runs["llama-3.1-8b"]["gpus"] == 1
    assert main(["which", "--gpu", "rtx-4090"]) == 0
    assert "run one" in capsys.readouterr().out
    assert main(["which", "--gpu", "rtx-4909x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
