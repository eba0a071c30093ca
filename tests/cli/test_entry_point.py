"""The command line through its real entry point: exit codes, one-line errors, nothing but JSON on stdout."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def trilemma(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trilemma", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_lists_the_commands() -> None:
    done = trilemma("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("fit", "check", "plan", "validate", "hardware", "models"))


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        (["fitt", "llama-3.1-8b"], "fit"),
        (["fit", "llama-3.1-8b"], "--gpu"),
        (["fit", "llama-3.1-8b", "--gpu", "h1000-sxm"], "h100"),
        (["fit", "llama-3.1-8b", "--gpu", "h100-sxm:0"], "0"),
        (["fit", "llama-3.1-8b", "--gpu", "h100-sxm:-3"], "-3"),
        (["fit", "llama-3.1-70b", "--gpu", "h100-sxm:6"], "64 attention heads"),
        (["fit", "llama-3.1-70b", "--gpu", "h100-sxm:8", "--tp", "4"], "--tp 4"),
        (["fit", "no-such-model", "--gpu", "h100-sxm"], "no-such-model"),
        (["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--memory-fraction", "95"], "95"),
        (["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--memory-fraction", "nan"], "nan"),
        (["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--isl", "-5"], "-5"),
        (["fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", "nothing"], "nothing"),
        (["fit", "gpt2", "--gpu", "mi300x", "--engine", "tensorrt-llm"], "NVIDIA"),
        (
            ["fit", "gpt2", "--gpu", "apple-m1", "--train", "1024", "--global-batch", "8"],
            "Megatron-LM does not train on",
        ),
        (["fit", "gpt2", "--gpu", "t4", "--gpu", "l4"], "trilemma compare"),
        (["fit", "gpt2", "--gpu", "t4:\u0668"], "characters that no name has"),
        (["fit", "/no/such/config.json", "--gpu", "h100-sxm"], "/no/such/config.json"),
        (["check", "--gpu", "h100-sxm"], "after --"),
        (["check", "--gpu", "h100-sxm", "--", "vllm", "serve", "llama-3.1-8b", "--tensor-parallel-size", "six"], "six"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(words: list[str], needle: str) -> None:
    done = trilemma(*words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert needle in done.stderr
    assert "Traceback" not in done.stderr


def test_tp_that_does_not_divide_heads_names_the_right_ones() -> None:
    done = trilemma("fit", "llama-3.1-70b", "--gpu", "h100-sxm:6")
    assert done.stderr.strip().endswith("use 1, 2, 4, 8, 16, 32 or 64")


def test_json_is_alone_on_stdout() -> None:
    done = trilemma("fit", "llama-3.1-8b", "--gpu", "h100-sxm", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "trilemma/estimate@1"


def test_check_says_where_a_command_dies() -> None:
    done = trilemma(
        "check", "--gpu", "h100-sxm:8", "--json", "--",
        "vllm", "serve", "deepseek-ai/DeepSeek-R1", "--tensor-parallel-size", "8", "--max-model-len", "163840",
    )  # fmt: skip
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["verdict"]["stage"] == "oom_load"
    assert "GiB" in document["reason"]
