"""Tensor and sequence parallelism cut every saved tensor of a dense layer (Korthikanti et al. 2022, section 4.2)."""

from __future__ import annotations

from typing import Any

import pytest

from asking import document


def memory(words: str) -> dict[str, Any]:
    return {one["name"]: one["bytes"] for one in document(words, code=None)["memory"]["items"]}


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-22b"])
@pytest.mark.parametrize("recompute", ["", " --recompute full"])
def test_ranks_divide_what_a_dense_layer_saves(model: str, recompute: str) -> None:
    found = {
        tp: memory(f"fit {model} --gpu h100-sxm:8 --train 2048 --global-batch 8 --tp {tp} --dp {8 // tp}{recompute}")
        for tp in (1, 2, 4)
    }
    for tp in (2, 4):
        assert found[tp]["activations"] == pytest.approx(found[1]["activations"] / tp, rel=1e-4)
        assert found[tp]["logits"] == pytest.approx(found[1]["logits"] / tp, rel=0.01)


def test_sequences_and_batches_multiply_what_is_saved() -> None:
    words = "fit llama-3.1-8b --gpu h100-sxm:8 --global-batch 16 --train"
    short, long = memory(f"{words} 1024"), memory(f"{words} 2048")
    two = memory(f"{words} 1024 --micro-batch 2")
    assert long["activations"] == pytest.approx(2 * short["activations"], rel=1e-3)
    assert two["activations"] == pytest.approx(2 * short["activations"], rel=1e-3)
    assert two["weights"] == short["weights"]


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v2-lite", "mixtral-8x7b"])
def test_more_ranks_never_save_more(model: str) -> None:
    found = [
        memory(f"fit {model} --gpu h200-sxm:8 --train 2048 --global-batch 8 --tp {tp} --dp {8 // tp}")["activations"]
        for tp in (1, 2, 4, 8)
    ]
    assert found == sorted(found, reverse=True)
    assert found[3] > found[0] / 8
