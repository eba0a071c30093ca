"""Screens of machines and of what is not a chat fit the window too, and copy whole."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from trilemma.cli.main import main
from trilemma.report.tables import display_width

WIDTHS = [80, 100, 200]
SMI = "index, name, memory.total [MiB], memory.free [MiB]\n0, NVIDIA GeForce RTX 3090, 24576 MiB, 24000 MiB\n"
VLLM = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"
SCREENS = (
    "here SMI", "doctor SMI",
    f"audit --gpu h100-sxm -- {VLLM}",
    "fit bge-m3 --gpu l4 --isl 512 --explain",
    "fit qwen3-vl-8b --gpu h100-sxm --isl 256 --osl 256 --images 2 --image-size 1280x960 --explain",
    "fit llama-3.1-8b --precision q4_k_m --gpu rtx-3060 --engine ollama --context 16384",
    "check --gpu rtx-3060 -- ollama run ./Llama-3.1-8B-Instruct-Q4_K_M.gguf",
    "fit llama-3.1-8b --precision q4_k_m --gpu rtx-3060 --engine lm-studio --context 16384",
    "fit llama-3.1-8b --gpu m4-max-64gb --engine mlx-lm --isl 512 --osl 128",
)  # fmt: skip
#: What is copied is never broken: commands under "run it", "run one".
COPIED = re.compile(r"  (printf|lms|mlx_lm|ollama|vllm|llama-server|lmdeploy|python|trilemma) ?")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("words", SCREENS)
def test_no_line_is_longer_than_the_window(
    words: str, width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smi.csv").write_text(SMI)
    monkeypatch.setenv("COLUMNS", str(width))
    asked = [str(tmp_path / "smi.csv") if word == "SMI" else word for word in shlex.split(words)]
    assert main(asked) in (0, 1)
    shown = capsys.readouterr().out
    assert shown.count("\n") > 2
    wide = [line for line in shown.splitlines() if display_width(line) > width and len(line.split()) > 1]
    assert [line for line in wide if not COPIED.match(line) and not line.lstrip().startswith("|")] == []
