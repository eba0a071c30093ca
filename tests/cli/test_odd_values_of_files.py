"""Values in files from outside that are nearly what is expected: an answer or one line, never a fault of ours or a warning."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.diagnosis.rules.infiniband_ports import _rate
from trilemma.models.quantized.automaton import Automaton
from trilemma.timing.serving_cycle import prompts_together

TRAINED = {"model": "Llama 3.2 3B [lora]", "gpu": "H100 SXM", "gpus": "1", "framework": "PEFT", "seq_len": "768",
           "micro_batch": "4", "global_batch": "4", "measured_metric": "peak_memory_gib", "value": "20"}  # fmt: skip
SERVED = {"model": "Llama 3.1 8B", "gpu": "H100 SXM", "engine": "vLLM", "isl": "1024", "osl": "128", "metric": "tpot_ms",
          "value": "10", "concurrency_or_batch": "8", "tp": "1", "precision_weights": "bf16"}  # fmt: skip


def table(path: Path, row: dict[str, str]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(row), list(row.values())])
    return str(path)


@pytest.mark.parametrize(
    "value", ["!!timestamp x", "!!bool x", "!!int ''", "!!float ''", "!!int 0b", "!!timestamp 2001"]
)
@pytest.mark.parametrize("command", ["trl sft --config", "axolotl train", "llamafactory-cli train"])
def test_values_that_are_not_what_their_tag_says(
    value: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"base_model: Qwen/Qwen2.5-7B\nmodel_name_or_path: Qwen/Qwen2.5-7B\nmax_steps: {value}\n")
    assert main(["check", "--gpu", "h100-sxm:8", "--", *command.split(), str(path)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "is not readable YAML" in told.err


@pytest.mark.parametrize(
    ("base", "cell"),
    [
        (TRAINED, {"notes": "trainable params ,,,"}),
        (TRAINED, {"notes": "trainable params ,5"}),
        (TRAINED, {"notes": "local batch 0", "global_batch": ""}),
        (TRAINED, {"global_batch": "6"}),
        (TRAINED, {"interconnect": "0x200Gb/s"}),
        (SERVED, {"isl": "0"}),
        (SERVED, {"isl": "0", "metric": "ttft_ms"}),
        (SERVED, {"isl": "0", "engine": "llama.cpp", "precision_weights": "q4_k_m"}),
        (SERVED, {"notes": "ubatch=0;backend=;fa=", "engine": "llama.cpp", "precision_weights": "q4_k_m"}),
    ],
)
def test_cells_of_rows(
    base: dict[str, str], cell: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", table(tmp_path / "t.csv", {**base, **cell}), "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert not any(word in told.out for word in ("NaN", "Infinity", "-Infinity"))


def test_prompts_that_are_all_cached_count_as_a_token() -> None:
    assert prompts_together(0.0) == prompts_together(1.0) == 2048


@pytest.mark.parametrize("figure", ["1.2.3", "...", "1..2", "."])
def test_figures_with_too_many_points_are_none(figure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "engine.log"
    path.write_text(
        f"INFO Engine 000: Running: 1 reqs, GPU KV cache usage: {figure}%, Prefix cache hit rate: {figure}%\n"
    )
    assert main(["diagnose", str(path)]) in (0, 2)
    assert "bug of ours" not in capsys.readouterr().err
    assert _rate({"rate": ("rate", f"{figure} Gb/sec")}) < 10


@pytest.mark.parametrize("expression", ["[[a]", "[!--]", "[a&&b]", "[a||b]", "[a~~b]"])
def test_expressions_that_python_warns_of(expression: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Automaton([expression])
    assert main(["validate", table(tmp_path / "t.csv", SERVED), "--where", f"model~{expression}"]) in (0, 1, 2)
    assert "Warning" not in capsys.readouterr().err
