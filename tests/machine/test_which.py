"""Every model of the catalogue on cards that are named: the largest first, each within the card, with the engine that runs it."""

from __future__ import annotations

import json
from typing import Any

import pytest

import trilemma as tl
from trilemma.ask import here as asking
from trilemma.cli.main import main
from trilemma.errors import InputError

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


def test_with_memory_beside_the_cards_larger_models_run_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpt-oss-120b (61 GiB) on a 24 GB card and 64 GiB of DDR: experts in the memory of the host, as its users run it."""
    monkeypatch.setattr(asking, "names", lambda: ["gpt-oss-120b", "qwen3-8b", "deepseek-v3"])
    alone = tl.which("rtx-4090")
    beside = tl.which("rtx-4090", host_memory=64)
    assert [one.model for one in alone.runs] == ["qwen3-8b"]
    assert [(one.model, one.on_host) for one in beside.runs] == [("gpt-oss-120b", True), ("qwen3-8b", False)]
    assert beside.too_large == ("deepseek-v3",)
    assert "+ host" in beside.show(width=80)
    with pytest.raises(InputError, match="host_memory"):
        tl.which("rtx-4090", host_memory=-1)


def test_the_context_stands_where_the_window_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "names", lambda: ["qwen3-8b"])
    row = next(line for line in tl.which("rtx-4090").show(width=80).splitlines() if line.startswith("qwen3-8b"))
    assert f"{tl.which('rtx-4090').runs[0].max_context:,}" in row


def test_models_that_do_not_fit_are_passed_over_without_looking_for_what_would_mend_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trilemma.search import remedies

    def not_here(*_: Any, **__: Any) -> None:
        raise AssertionError("nobody reads remedies of a table of what runs")

    monkeypatch.setattr(remedies, "remedies", not_here)
    seen: list[tuple[int, int, str]] = []
    found = tl.which("rtx-4090", progress=lambda *step: seen.append(step))
    assert found.too_large
    assert seen == [*((at, len(_SOME), name) for at, name in enumerate(_SOME)), (len(_SOME), len(_SOME), "")]


def test_weights_are_stored_anew_once_for_each_number_of_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    from trilemma.search import precisions

    stored: list[str] = []
    whole = precisions.requantize
    monkeypatch.setattr(precisions, "requantize", lambda model, name: (stored.append(name), whole(model, name))[1])
    tl.which("rtx-4090:8")
    assert stored.count("q4_k_m") <= len(_SOME)
    assert stored.count("fp8") <= len(_SOME)


def test_weights_that_are_published_in_fewer_bits_are_not_made_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpt-oss is published in MXFP4 (12.8 GB); its Q4_K_M stores the experts in more (15.8 GB)."""
    monkeypatch.setattr(asking, "names", lambda: ("gpt-oss-20b", "qwen3-14b"))
    runs = {run.model: run for run in tl.which("apple-m2").runs}
    assert (runs["gpt-oss-20b"].engine, runs["gpt-oss-20b"].weights) == ("llama.cpp", "as published")
    assert runs["gpt-oss-20b"].weights_bytes < 13e9 + 1e9
    assert runs["qwen3-14b"].weights == "q4_k_m"
