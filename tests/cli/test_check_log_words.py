"""Logs given to check: junk is refused, a failed start keeps its remedies, and a log alone is a command where it says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trilemma.cli.main import main

# torch's own message, with figures of vllm-project/vllm issue 15747 and of a 44.4 GiB L40S.
OOM = (
    "(EngineCore_0 pid=1) ERROR 11-02 10:00:31 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    " 270.00 MiB. GPU 0 has a total capacity of 44.40 GiB of which 158.31 MiB is free. Process 1 has 44.23 GiB memory in use. Of"
    " the allocated memory 43.70 GiB is allocated by PyTorch, and 22.07 MiB is reserved by PyTorch but unallocated.\n"
)
LOADING = "INFO 11-02 10:00:01 [gpu_model_runner.py:1988] Starting to load model Qwen/Qwen3-32B...\n"
# The server's line as versions from 0.8 on print it.
STARTED = """\
INFO 11-02 10:00:00 [api_server.py:1896] vLLM API server version 0.11.0
INFO 11-02 10:00:00 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-8B', 'model': 'Qwen/Qwen3-8B', 'max_model_len': 16384, 'gpu_memory_utilization': 0.8, 'enforce_eager': True, 'tensor_parallel_size': 2, 'port': 8001}
INFO 11-02 10:00:31 [gpu_model_runner.py:2653] Model loading took 7.6 GiB and 12.5 seconds
"""  # noqa: E501


def _check(capsys: pytest.CaptureFixture[str], path: Path, text: str, words: str) -> tuple[int, str]:
    path.write_text(text)
    code = main(words.replace("LOG", str(path)).split())
    told = capsys.readouterr()
    return code, told.out + told.err


@pytest.mark.parametrize("text", ["hello\n", "", "2026-01-01 nginx: started\nGET / 200\n" * 50])
def test_junk_logs_are_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "check --gpu l40s --log LOG -- vllm serve Qwen/Qwen3-32B"
    code, told = _check(capsys, tmp_path / "junk.log", text, words)
    assert code == 2
    assert "holds no line of a vLLM start" in told


def test_a_failed_start_keeps_its_remedies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "check --gpu l40s --log LOG -- vllm serve Qwen/Qwen3-32B"
    code, told = _check(capsys, tmp_path / "oom.log", LOADING + OOM, words)
    assert code == 1
    assert main(words.replace("--log LOG ", "").split()) == 1
    without = capsys.readouterr().out
    head = "what would make it fit, cheapest first"
    assert told.partition(head)[2].partition("assumed")[0] == without.partition(head)[2].partition("assumed")[0]
    headline = " ".join(told.partition("\n\n")[0].split())
    assert "158.31 MiB is free." in headline  # whole sentences, without what stands before them
    assert "core.py" not in headline
    assert "loading needs 61.54 GiB per GPU, the card has 44.40 GiB" in headline


def test_a_failure_that_the_ledger_does_not_see_says_what_it_misses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "check --gpu l40s --log LOG -- vllm serve Qwen/Qwen3-8B --max-model-len 4096"
    code, told = _check(capsys, tmp_path / "oom.log", OOM, words)
    assert code == 1
    assert "the ledger takes" in told
    assert "by other processes or by what is not counted" in told


def test_a_log_alone_is_its_own_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = _check(capsys, tmp_path / "start.log", STARTED, "check --gpu l40s:2 --json --log LOG")
    assert code == 0
    found = json.loads(told)
    given = "check --gpu l40s:2 --json --log LOG -- docker run vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B"
    flags = "--max-model-len 16384 --gpu-memory-utilization 0.8 --enforce-eager --tensor-parallel-size 2"
    _, same = _check(capsys, tmp_path / "start.log", STARTED, f"{given} {flags}")
    whole = json.loads(same)
    assert found["memory"] == whole["memory"]
    assert found["kv_cache"] == whole["kv_cache"]


@pytest.mark.parametrize(("text", "says"), [(OOM, "names no model"), (LOADING + OOM, "states no arguments")])
def test_a_log_alone_says_what_it_lacks(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = _check(capsys, tmp_path / "oom.log", text, "check --gpu l40s --log LOG")
    assert code == 2
    assert says in told
    assert "behind --" in told


def test_a_pool_that_the_log_prints_is_known_and_its_file_is_named_shortly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "INFO 11-30 12:00:20 [gpu_worker.py:298] Available KV cache memory: 54.25 GiB\n"
    words = "check --gpu h100-sxm --log LOG --json -- vllm serve meta-llama/Llama-3.1-8B-Instruct"
    _, told = _check(capsys, tmp_path / "a-start.log", text, words)
    pool = next(line for line in json.loads(told)["memory"]["items"] if line["name"] == "kv_cache")
    assert pool["low_bytes"] == pool["bytes"] == pool["high_bytes"] == pytest.approx(54.25 * 2**30, rel=1e-6)
    _, shown = _check(capsys, tmp_path / "a-start.log", text, words.replace(" --json", ""))
    assert " a-start.log:1" in shown
    assert str(tmp_path) not in shown.partition("against the")[2].partition("KV cache")[0]
