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
