"""``trilemma check``: commands as people paste them, remedies that hold when fed back, logs that correct us."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.main import main

DOOMED = [
    ("h100-sxm", 8, "vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8 --max-model-len 163840"),
    ("h100-sxm", 1, "vllm serve openai/gpt-oss-120b"),
    ("rtx-5090", 1, "vllm serve Qwen/Qwen3-32B --max-model-len 32768 --max-num-seqs 1"),
    ("l4", 1, "vllm serve meta-llama/Llama-3.1-8B-Instruct"),
    ("a100-sxm-80gb", 2, "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 2 --gpu-memory-utilization 0.9"),
]


def check(capsys: pytest.CaptureFixture[str], gpu: str, command: str, *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", "--gpu", gpu, "--json", *more, "--", *shlex.split(command)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("card", "gpus", "command"), DOOMED)
def test_each_remedy_fits_when_fed_back(card: str, gpus: int, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = check(capsys, f"{card}:{gpus}", command)
    assert code == 1
    assert answer["verdict"]["stage"] != "ok"
    assert answer["reason"].count(". ") == 0
    assert len(answer["remedies"]) == 3
    for remedy in answer["remedies"]:
        again, changed = check(capsys, card, remedy["flags"])
        assert again == 0, remedy
        assert changed["fits"]


@pytest.mark.parametrize(
    "wrapped",
    [
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.19.0 --model meta-llama/Llama-3.1-8B-Instruct",
        "CUDA_VISIBLE_DEVICES=0 vllm serve meta-llama/Llama-3.1-8B-Instruct",
        "bash -c 'vllm serve /models/Llama-3.1-8B-Instruct 2>&1 | tee serve.log'",
    ],
)
def test_wrapped_commands_are_read(wrapped: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = check(capsys, "h100-sxm", wrapped)
    assert code == 0
    assert answer["inputs"]["model"]["parameters"] == 8_030_261_248


@pytest.mark.parametrize(
    ("command", "nearest"),
    [
        ("vllm serve Qwen/Qwen3-8B --tensor-paralel-size 2", "--tensor-parallel-size"),
        ("vllm serve Qwen/Qwen3-8B --max-modle-len 4096", "--max-model-len"),
        ("sglang serve --model-path Qwen/Qwen3-8B --mem_fraction_static 0.8", "--mem-fraction-static"),
        ("trtllm-serve Qwen/Qwen3-8B --tp_sise 2", "--tp-size"),
        ("llama-server -hf Qwen/Qwen3-8B-GGUF:Q8_0 --ctx-sise 4096", "--ctx-size"),
    ],
)
def test_slip_of_a_flag_is_refused_as_the_engine_would(
    command: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = check(capsys, "h100-sxm", command)
    assert (code, answer["fits"], answer["verdict"]["stage"]) == (1, False, "ok")
    assert nearest in answer["refused"][0]
    assert main(["check", "--gpu", "h100-sxm", "--", *shlex.split(command)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "THE ENGINE REFUSES THIS COMMAND" in shown
    assert shown.count(nearest) == 1


@pytest.mark.parametrize(("version", "code"), [("", 0), ("vllm/vllm-openai:v0.19.0", 1)])
def test_flag_unlike_any_other_is_refused_only_by_a_version_whose_flags_are_known(
    version: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a version the engine may be newer than the flags read."""
    program = f"docker run {version} --model" if version else "vllm serve"
    found, answer = check(capsys, "h100-sxm", f"{program} Qwen/Qwen3-8B --brand-new yes")
    assert found == code
    assert any("--brand-new" in warning["message"] for warning in answer["warnings"])


def test_shared_card_leaves_less(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = check(capsys, "l4", "vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 8192", "--free-gib", "17")
    assert code == 1
    assert answer["verdict"]["stage"] == "oom_load"
    assert "17.00" in answer["reason"]


LOG = """\
INFO 04-22 10:00:00 [api_server.py:1] vLLM API server version 0.19.0
INFO 04-22 10:00:10 [gpu_model_runner.py:1] Model loading took {weights} GiB memory and 5.0 seconds
INFO 04-22 10:00:20 [gpu_worker.py:1] Available KV cache memory: {pool} GiB
"""


def test_log_replaces_our_lines_and_names_the_first_divergence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures of llm-d-planner PR 205, Llama-3.1-8B on H100: 14.99 GiB loaded; one with 3 GiB too much made up here."""
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --gpu-memory-utilization 0.95 --max-model-len 8192"
    log = tmp_path / "start.log"
    log.write_text(LOG.format(weights="14.99", pool="58.11"))
    _, agreed = check(capsys, "h100-sxm", command, "--log", str(log))
    assert not any(warning["code"] == "divergence" for warning in agreed["warnings"])
    assert agreed["kv_cache"]["tokens"] == pytest.approx(476_016, rel=1e-3)
    log.write_text(LOG.format(weights="17.99", pool="55.11"))
    _, differing = check(capsys, "h100-sxm", command, "--log", str(log))
    message = next(warning["message"] for warning in differing["warnings"] if warning["code"] == "divergence")
    assert message.startswith("first divergence from the log: weights measured 17.99 GiB")
    assert f"{log}:2" in message
    assert differing["memory"]["items"][0]["bytes"] == pytest.approx(17.99 * 2**30, rel=1e-6)


def test_blocks_of_an_early_log_are_the_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vllm-project/vllm issue 2418: 229 blocks of 16 tokens admit 3,664 tokens and not 4,096."""
    log = tmp_path / "start.log"
    log.write_text("INFO 01-11 10:00:00 llm_engine.py:275] # GPU blocks: 229, # CPU blocks: 512\n")
    command = "vllm serve meta-llama/Llama-2-7b-hf --dtype float16"
    code, answer = check(capsys, "v100-sxm2-16gb", command, "--log", str(log))
    assert code == 1
    assert answer["verdict"]["stage"] == "kv_too_small"
    assert answer["kv_cache"]["tokens"] == 229 * 16


def test_a_log_of_more_cache_than_the_card_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "start.log"
    log.write_text("INFO # GPU blocks: 99999999999999999999, # CPU blocks: 512\n")
    words = ["--", "vllm", "serve", "meta-llama/Llama-2-7b-hf", "--dtype", "float16"]
    assert main(["check", "--gpu", "v100-sxm2-16gb", "--log", str(log), *words]) == 2
    shown = capsys.readouterr()
    assert "start.log:1: a cache pool of" in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


@pytest.mark.parametrize(("gib", "told"), [("118.65", True), ("6.30", False)])
def test_an_implausible_estimate_of_graphs_is_told(
    gib: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """vllm-project/vllm issue 53013: 118.65 GiB estimated on GB300; measured are 0.46 to 6.3 GB a card."""
    log = tmp_path / "start.log"
    log.write_text(f"INFO 09-01 10:00:00 [gpu_model_runner.py:5000] Estimated CUDA graph memory: {gib} GiB total\n")
    _, answer = check(capsys, "gb300:8", "vllm serve Qwen/Qwen3-235B-A22B -tp 2 -dp 4 -ep", "--log", str(log))
    said = [one["message"] for one in answer["warnings"] if one["code"] == "implausible-graph-estimate"]
    assert any("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0" in one for one in said) == told
