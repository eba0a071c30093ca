"""Cards of several kinds in one machine, through the command line."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from trilemma.cli.main import main

_COMMAND = "llama-server -hf bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M -ngl 99 -c 4096 -np 1"


def _check(capsys: pytest.CaptureFixture[str], gpu: str, command: str = _COMMAND) -> dict[str, Any]:
    assert main(["check", "--gpu", gpu, "--json", "--", *shlex.split(command)]) in (0, 1)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_mixed_pair_lies_between_pairs_of_either_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """XiongjieDai GPU-Benchmarks-on-LLM-Inference, 70B Q4_K_M: 19.06 tokens/s on two RTX 4090, 16.29 on two RTX 3090."""
    seconds = {}
    for gpu in ("rtx-4090:2", "rtx-4090+rtx-3090", "rtx-3090+rtx-4090", "rtx-3090:2"):
        document = _check(capsys, gpu)
        assert document["fits"]
        seconds[gpu] = document["speed"]["tpot_ms"]
    fast, slow = seconds["rtx-4090:2"]["value"], seconds["rtx-3090:2"]["value"]
    assert fast < seconds["rtx-4090+rtx-3090"]["value"] < slow
    assert seconds["rtx-4090+rtx-3090"]["value"] == pytest.approx((fast + slow) / 2, rel=0.02)
    assert seconds["rtx-3090+rtx-4090"]["value"] == pytest.approx(seconds["rtx-4090+rtx-3090"]["value"], rel=0.02)
    for gpu, measured in (("rtx-4090:2", 19.06), ("rtx-3090:2", 16.29)):
        assert seconds[gpu]["low"] < 1e3 / measured < seconds[gpu]["high"]


def test_layers_follow_the_memory_of_each_card(capsys: pytest.CaptureFixture[str]) -> None:
    """llama.cpp splits by free memory: 24 and 12 GB hold two thirds and a third, and --tensor-split moves that."""
    command = "llama-server -hf unsloth/Qwen3-32B-GGUF:Q4_K_M -ngl 99 -c 4096 -np 1"
    automatic = _check(capsys, "rtx-4090+rtx-3060-12gb", command)
    stated = _check(capsys, "rtx-4090+rtx-3060-12gb", f"{command} -ts 2,1")
    moved = _check(capsys, "rtx-4090+rtx-3060-12gb", f"{command} -ts 1,1")
    assert automatic["fits"]
    assert stated["speed"]["tpot_ms"]["value"] == pytest.approx(automatic["speed"]["tpot_ms"]["value"], rel=0.03)
    assert moved["speed"] is None or moved["speed"]["tpot_ms"]["value"] > 1.1 * stated["speed"]["tpot_ms"]["value"]


def test_names_prices_and_watts_are_those_of_all_cards(capsys: pytest.CaptureFixture[str]) -> None:
    document = _check(capsys, "rtx-4090+rtx-3090")
    assert document["inputs"]["cluster"]["accelerator"]["id"] == "nvidia-rtx-4090+nvidia-rtx-3090"
    assert document["power"]["limit_watts"] == 450 + 350
    assert 100 < document["power"]["watts"] <= 800


def test_one_kind_named_twice_is_that_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(capsys, "rtx-4090+rtx-4090")["memory"] == _check(capsys, "rtx-4090:2")["memory"]


def test_what_does_not_fit_is_given_a_remedy_on_the_same_cards(capsys: pytest.CaptureFixture[str]) -> None:
    document = _check(capsys, "rtx-4090+rtx-3060-12gb")
    assert not document["fits"]
    remedy = document["remedies"][0]
    assert "in the memory of the host" in remedy["change"]
    assert _check(capsys, "rtx-4090+rtx-3060-12gb", remedy["flags"])["fits"]


@pytest.mark.parametrize(
    "line",
    [
        "check --gpu rtx-4090+rtx-3090 -- vllm serve Qwen/Qwen3-8B -tp 2",
        "fit qwen3-8b --gpu rtx-4090+rtx-3090",
        "fit qwen3-8b --gpu rtx-4090+rtx-3090 --engine llama.cpp --tp 2",
        "fit qwen3-8b --gpu rtx-4090+rtx-3090 --engine llama.cpp --nodes 2",
        "plan qwen3-8b --gpu rtx-4090+rtx-3090 --serve 512/128",
        "compare qwen3-8b --gpu rtx-4090+rtx-3090",
        "fit qwen3-8b --gpu rtx-4090+ --engine llama.cpp",
        "fit qwen3-8b --gpu rtx-4090:60+rtx-3090:60 --engine llama.cpp",
        "upgrade --from b7410 --to b10800 --gpu rtx-4090+rtx-3090 -- llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M",
    ],
)
def test_what_cannot_use_them_says_so(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert main(shlex.split(line)) == 2
    message = capsys.readouterr().err
    assert message.startswith("trilemma: ")
    assert len(message.strip().splitlines()) == 1
