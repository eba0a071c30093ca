"""Servers that answer with vectors or scores: documents and tokens of prompts, no tokens of output."""

from __future__ import annotations

import json
import shlex

import pytest

import trilemma as tl

_VLLM = "vllm serve qwen3-8b --max-model-len 8192"


@pytest.mark.parametrize(
    "command",
    [
        f"{_VLLM} --runner pooling --convert embed",
        f"{_VLLM} --runner pooling",
        "docker run vllm/vllm-openai:v0.10.0 --model qwen3-8b --max-model-len 8192 --task embed",
        "python -m sglang.launch_server --model-path qwen3-8b --context-length 8192 --is-embedding",
        "llama-server -m /models/Qwen3-8B-Q8_0.gguf -c 8192 --embedding",
        "llama-server -m /models/Qwen3-8B-Q8_0.gguf -c 8192 --reranking",
        "vllm serve Qwen/Qwen3-Reranker-8B --max-model-len 8192",
    ],
)
def test_nothing_is_generated(command: str) -> None:
    answer = tl.check(command, gpu="h100-sxm").to_dict()
    speed = answer["speed"]
    assert {"tpot_ms", "itl_ms", "ttft_ms", "output_tokens_per_s"}.isdisjoint(speed)
    assert speed["documents_per_s"]["value"] > 0
    assert speed["input_tokens_per_s"]["value"] == pytest.approx(speed["documents_per_s"]["value"] * 1024, rel=1e-3)
    assert "joules_per_token" not in answer.get("power", {})
    assert any(note["code"] == "generates-nothing" for note in answer["warnings"])
    assert "/s of prompts" in str(tl.check(command, gpu="h100-sxm"))


@pytest.mark.parametrize("command", [_VLLM, f"{_VLLM} --runner generate", f"{_VLLM} --runner auto --convert auto"])
def test_generators_stay_generators(command: str) -> None:
    speed = tl.check(command, gpu="h100-sxm").to_dict()["speed"]
    assert speed["tpot_ms"]["value"] > 0
    assert "documents_per_s" not in speed


def test_documents_take_the_floating_point_work_of_their_tokens() -> None:
    """Qwen3-8B on an H100: 6.9e9 parameters beside the vocabulary, two operations each a token; 989 TFLOP/s is never passed."""
    speed = tl.fit("Qwen/Qwen3-Embedding-8B", "h100-sxm", isl=8192, context=16384).to_dict()["speed"]
    rate = speed["input_tokens_per_s"]["value"]
    assert 0.25 * 989e12 < rate * 2 * 6.9e9 < 989e12


def test_longer_documents_are_fewer_and_a_replica_more_doubles_them() -> None:
    short, long = (tl.fit("Qwen/Qwen3-Embedding-8B", "l4", isl=length, context=16384).to_dict()["speed"]
                   for length in (512, 8192))  # fmt: skip
    assert short["documents_per_s"]["value"] > 8 * long["documents_per_s"]["value"]
    two = tl.fit("Qwen/Qwen3-Embedding-8B", "l4:2", isl=512, context=16384, replicas=2).to_dict()["speed"]
    assert two["documents_per_s"]["value"] == pytest.approx(2 * short["documents_per_s"]["value"], rel=1e-3)


def test_an_embedding_model_is_known_by_its_name() -> None:
    document = tl.fit("Qwen/Qwen3-Embedding-8B", "h100-sxm", context=8192).to_dict()
    assert "tpot_ms" not in document["speed"]
    json.dumps(document)
    assert shlex.split(document["command"])[0] == "vllm"


def test_plans_are_not_ranked_by_tokens_that_are_not_generated() -> None:
    for ask in (lambda: tl.plan("Qwen/Qwen3-Embedding-8B", "h100-sxm:2", isl=512, osl=1),
                lambda: tl.compare("Qwen/Qwen3-Embedding-8B", ["h100-sxm", "l4"], isl=512, osl=1)):  # fmt: skip
        with pytest.raises(tl.InputError, match="generates no tokens to go by"):
            ask()
