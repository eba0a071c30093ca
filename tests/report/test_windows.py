"""Every table of every command fits the window; what is there to be copied is whole."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from trilemma.cli.main import main
from trilemma.formats import catalogue
from trilemma.hardware.catalogue import ids
from trilemma.report.tables import display_width
from trilemma.report.wrapping import within

SERVE = "--isl 4096 --osl 1024 --concurrency 32"
SCREENS = (
    "fit qwen3-32b --gpu l40s --precision fp8 --explain",
    f"fit qwen3-32b --gpu h100-sxm:2 {SERVE} --ttft 1000 --tpot 40 --explain",
    "fit llama-3.1-70b-fp8 --gpu h100-sxm:8 --prefill 2xTP2 --decode 1xTP4 --isl 4096 --osl 1024 --rate 3",
    "fit llama-3.1-8b --gpu h100-sxm:8 --train 4096 --global-batch 64 --tokens 1T --explain",
    "fit llama-3.1-70b --gpu h100-sxm:16 --train 4096 --global-batch 64",
    "check --gpu h100-sxm:8 -- vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8",
    "plan llama-3.1-70b --gpu h200-sxm:8 --serve 4096/1024",
    "plan llama-3.3-70b --gpu l40s --serve 8192/1024 --rate 20 --ttft 2000 --tpot 20",
    "plan llama-3.1-70b --gpu l4:1 --serve 8192/1024",
    "plan qwen3-14b --gpu rtx-4090:1 --serve 2048/512 --engine llama.cpp --explain",
    "plan llama-3.1-8b --gpu h100-sxm:16 --train 8192 --global-batch 128",
    "plan llama-3.1-70b --gpu rtx-4090:2 --train 8192 --global-batch 128",
    "compare gpt-oss-120b --gpu h100-sxm:2 --gpu b300-sxm --gpu mi355x --serve 4096/1024",
    "compare llama-3.1-8b --gpu h100-sxm:16 --gpu rtx-4090:2 --train 8192 --global-batch 128 --tokens 1T",
    "upgrade --from 0.8 --to 0.33 --gpu h100-sxm -- vllm serve Qwen/Qwen3-32B --max-num-seqs 64",
    "recommend llama-3.1-8b --serve 2048/512 --rate 5 --ttft 1000 --tpot 40",
    "precision recipe llama-3.1-8b --gpu h100-sxm:8 --zero 3",
    "precision plan qwen3-32b --gpu rtx-4090 --context 8192 --explain",
    "precision train-lab --list",
    "models", "models qwen3-next-80b-a3b --explain",
    "hardware", "hardware b300-sxm --explain",
    "formats", "formats nvfp4 --explain", "formats --compare",
    "kernels llama-3.1-8b --gpu h100-sxm:1 --batch 8 --cached 4096",
    "validate tests/data/serving_memory_sample.csv", "validate tests/data/training_sample.csv",
    "diagnose tests/diagnosis/test_kernel_log.py tests/diagnosis/test_public_cases.py",
)  # fmt: skip
#: Lines that stay whole: an indented command, and what has no blank.
COMMAND = re.compile(r" +.* --?[a-z]")


def too_wide(text: str, width: int) -> list[str]:
    """Lines of ``text`` that do not fit and might."""
    wide = [line for line in text.splitlines() if display_width(line) > width and len(line.split()) > 1]
    return [line for line in wide if not COMMAND.match(line)]


@pytest.mark.parametrize(
    "width", [80, pytest.param(100, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("words", SCREENS)
def test_no_line_is_longer_than_the_window(words, width, capsys, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(shlex.split(words)) in (0, 1)
    assert not too_wide(capsys.readouterr().out, width)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_ids_are_whole(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    main(["hardware"])
    shown = set(capsys.readouterr().out.split())
    assert set(ids()) <= shown
    main(["formats"])
    shown = set(capsys.readouterr().out.split())
    assert set(catalogue.names()) <= shown


def test_plans_lose_no_word_of_their_layout_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["plan", "llama-3.1-70b", "--gpu", "h100-sxm", "--serve", "4096/1024", "--rate", "20", "--ttft", "2000"])
    out = capsys.readouterr().out
    assert "…" not in out
    assert re.search(r"left out at 80 columns: .*bound\s+by", out)


def test_the_window_is_80_columns_where_nothing_says_how_wide_it_is(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    main(["plan", "llama-3.1-8b", "--gpu", "h100-sxm:1", "--serve", "4096/1024"])
    assert "left out at 80 columns" in capsys.readouterr().out


def test_commands_and_labels_survive_a_narrow_window():
    command = "  vllm serve a/b --tensor-parallel-size 8 --max-model-len 5120"
    assert within(command, 20) == command
    assert within("cost       one two three four", 24) == "cost       one two three\n           four"
    assert within("short", 20) == "short"


def test_every_screen_says_which_statistic_a_latency_is(capsys):
    main(["fit", "llama-3.1-8b", "--gpu", "h100-sxm", *SERVE.split(), "--ttft", "1000", "--json"])
    told = json.loads(capsys.readouterr().out)["speed"]["ttft_ms"]
    main(["fit", "llama-3.1-8b", "--gpu", "h100-sxm", *SERVE.split(), "--ttft", "1000"])
    out = capsys.readouterr().out
    assert "means over requests; P50 and P99: first token " + f"{told['p50']:,.1f} ms and {told['p99']:,.1f} ms" in out
    assert "mean TTFT ≤ 1000 ms" in out
    main(["plan", "llama-3.1-8b", "--gpu", "h100-sxm:1", "--serve", "4096/1024"])
    out = capsys.readouterr().out
    assert "mean TTFT, holds" in out
    assert "mean TPOT, holds" in out
    main(["compare", "llama-3.1-8b", "--gpu", "h100-sxm:1", "--serve", "4096/1024"])
    out = capsys.readouterr().out
    assert "mean TTFT" in out.partition("tok/s/user")[2]
