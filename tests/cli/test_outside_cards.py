"""Weights outside the cards through the command line: remedies, hosts, what is said."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from trilemma.cli.main import main

_GPT_OSS = "llama-server -hf ggml-org/gpt-oss-120b-GGUF -ngl 99 -c 8192 -np 1"
_LLAMA = "llama-server -hf bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M -ngl 99 -c 8192 -np 1"


def _check(capsys: pytest.CaptureFixture[str], command: str, *options: str, gpu: str = "rtx-4090") -> dict[str, Any]:
    main(["check", "--gpu", gpu, *options, "--json", "--", *shlex.split(command)])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def _codes(document: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in document["warnings"]]


@pytest.mark.parametrize(
    ("command", "flag", "less"),
    [(_GPT_OSS, "--n-cpu-moe", -1), (_LLAMA, "--n-gpu-layers", 1)],
    ids=["experts", "layers"],
)
def test_remedies_name_the_least_that_has_to_leave_the_card(
    capsys: pytest.CaptureFixture[str], command: str, flag: str, less: int
) -> None:
    failing = _check(capsys, command)
    assert failing["verdict"]["stage"] == "oom_load"
    remedy = next(one for one in failing["remedies"] if flag in one["flags"] and "host" in one["change"])
    number = int(re.search(rf"{flag} (\d+)", remedy["flags"]).group(1))  # type: ignore[union-attr]
    assert _check(capsys, remedy["flags"])["verdict"]["stage"] == "ok"
    one_less = re.sub(rf"{flag} \d+", f"{flag} {number + less} --fit off", remedy["flags"])
    assert _check(capsys, one_less)["verdict"]["stage"] != "ok"
    assert re.search(r"tokens/s a request \(", remedy["effect"])


def test_a_host_that_is_assumed_is_said_and_widens_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{_GPT_OSS} --n-cpu-moe 28"
    assumed = _check(capsys, command)
    stated = _check(capsys, command, "--host", "DDR5-5600x2")
    assert "assumed-host" in _codes(assumed)
    assert "assumed-host" not in _codes(stated)
    assert assumed["inputs"]["cluster"]["host"]["assumed"]
    assert stated["inputs"]["cluster"]["host"] == {"name": "DDR5-5600x2", "bytes_per_s": 89.6e9, "assumed": False}
    assert "host" not in _check(capsys, "vllm serve Qwen/Qwen3-8B")["inputs"]["cluster"]
    wide, narrow = (run["speed"]["tpot_ms"] for run in (assumed, stated))
    assert wide["value"] == narrow["value"]
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def test_what_is_counted_on_the_host_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    document = _check(capsys, f"{_GPT_OSS} --n-cpu-moe 28", "--host", "89.6")
    lines = {line["name"]: line["seconds"] for line in document["speed"]["lines"]}
    assert sum(lines.values()) * 1e3 == pytest.approx(document["speed"]["tpot_ms"]["value"], rel=1e-4)
    assert document["bottleneck"]["resource"] == "host"
    operator = next(one for one in document["speed"]["operators"] if one["name"] == "host_weights")
    # four of 128 experts of 28 layers: 3 x 2,880 x 2,880 weights of 4.25 bits
    assert operator["bytes"] == pytest.approx(28 * 4 * 3 * 2880 * 2880 * 4.25 / 8, rel=0.01)
    assert lines["host_weights"] == pytest.approx(operator["bytes"] / (89.6e9 * 0.55), rel=1e-4)


def test_offloaded_weights_of_vllm_pass_over_pcie(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve Qwen/Qwen3-14B --cpu-offload-gb 10 --max-model-len 8192 --max-num-seqs 1"
    document = _check(capsys, command)
    operator = next(one for one in document["speed"]["operators"] if one["name"] == "host_weights")
    assert operator["bytes"] == pytest.approx(10 * 2**30, rel=0.03)
    assert operator["bound_by"] == "interconnect"
    # PCIe 4 x16 one way at 0.8 of its rate
    assert operator["seconds"] == pytest.approx(operator["bytes"] / (31.5077e9 * 0.8), rel=1e-3)


def test_sglang_copies_experts_that_no_token_wakes(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM's kernels read eight of 128 experts of each layer over PCIe, SGLang copies the stacks."""
    moved = {}
    for command in (
        "vllm serve Qwen/Qwen3-30B-A3B --cpu-offload-gb 40 --max-model-len 4096 --max-num-seqs 1",
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --cpu-offload-gb 40 --context-length 4096"
        " --max-running-requests 1",
    ):
        document = _check(capsys, command, gpu="rtx-5090")
        moved[command.split()[0]] = next(
            one["bytes"] for one in document["speed"]["operators"] if one["name"] == "host_weights"
        )
    assert moved["python3"] == pytest.approx(40 * 2**30, rel=0.02)
    assert moved["vllm"] < 0.2 * moved["python3"]


def test_files_of_another_machine_are_known_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    document = _check(capsys, "llama-server -m /models/Qwen3-32B-Q4_K_M.gguf -c 8192 -np 1")
    assert "model-elsewhere" in _codes(document)
    # file size = 18.4 GiB, the embedding of 0.41 stays on the host
    weights = next(item for item in document["memory"]["items"] if item["name"] == "weights")
    assert weights["bytes"] / 2**30 == pytest.approx(18.40 - 0.41, abs=0.02)


@pytest.mark.parametrize(
    ("gpu", "command"),
    [
        ("rtx-4090", "llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -mg 7"),
        ("rtx-4090:2", "llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -sm none -mg 7"),
        ("rtx-4090", "CUDA_VISIBLE_DEVICES=0 llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M -sm none -mg 7"),
    ],
)
def test_a_main_card_that_is_not_there(capsys: pytest.CaptureFixture[str], gpu: str, command: str) -> None:
    assert main(["check", "--gpu", gpu, "--", *shlex.split(command)]) == 2
    assert "--main-gpu 7" in capsys.readouterr().err


def test_llama_cpp_counts_builds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "qwen3-8b", "--gpu", "rtx-4090", "--engine", "llama.cpp@0.19"]) == 2
    assert "not a build such as b7410" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["", "0", "nowhere", "ddr5-5600", "1e30", "ddr5-99999x99", "\x00"])
def test_hosts_that_are_none(capsys: pytest.CaptureFixture[str], host: str) -> None:
    line = ["check", "--gpu", "rtx-4090", "--host", host, "--", *shlex.split(_GPT_OSS)]
    assert main(line) == 2
    assert "host" in capsys.readouterr().err
