"""Questions of "which GPUs for" that people asked in public, and what their threads found to work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trilemma as tl

_FULL: dict[str, Any] = {"train": 2048, "global_batch": 32}
_ADAPTERS: dict[str, Any] = {"train": 512, "global_batch": 16, "rank": 8}
_READER: dict[str, Any] = {"isl": 1024, "osl": 256, "precision": ["as-is"]}
#: (thread, model, options, GPUs that the thread found to work; None: it found that there is no such number).
QUESTIONS: tuple[tuple[str, str, dict[str, Any], int | None], ...] = (
    ("meta-llama/llama-cookbook/issues/25", "llama-2-13b", {**_FULL, "include": "a100-sxm4-40gb", "engine": "torchtitan"}, 8),
    ("Alpha-VLLM/LLaMA2-Accessory/issues/26", "llama-2-13b", {**_FULL, "train": 512, "include": "a100-sxm4-80gb"}, 4),
    ("meta-llama/llama/issues/389", "llama-2-70b", {**_FULL, "train": 4096, "include": "a100-sxm4-80gb"}, 16),
    ("kingdy2002/SPA/issues/1", "mistral-7b", {**_FULL, "include": "rtx-a6000"}, 4),
    ("artidoro/qlora/issues/225", "llama-2-13b", {**_ADAPTERS, "method": "qlora", "include": "rtx-4090"}, 1),
    ("hiyouga/LlamaFactory/issues/1878", "mixtral-8x7b", {**_ADAPTERS, "method": "qlora", "include": "rtx-4090",
     "max_gpus": 1}, None),
    ("hiyouga/LlamaFactory/issues/1878", "mixtral-8x7b", {**_ADAPTERS, "method": "qlora", "include": "v100-sxm2-32gb"}, 1),
    ("vllm-project/vllm/issues/5711", "llama-3-70b", {**_READER, "include": "a100-sxm4-80gb"}, 2),
    ("vllm-project/vllm/issues/5711", "llama-3-70b", {**_READER, "precision": ["awq"], "include": "a100-sxm4-80gb"}, 1),
    ("h2oai/h2ogpt/issues/639", "llama-2-70b", {**_READER, "precision": ["awq"], "include": "rtx-a6000"}, 1),
    ("deepseek-ai/DeepSeek-R1/issues/276", "deepseek-r1", {**_READER, "include": "h20-96gb"}, 8),
    ("deepseek-ai/DeepSeek-R1/issues/276", "deepseek-r1", {**_READER, "include": "h800-sxm"}, 16),
    ("meta-llama/llama/issues/79", "llama-2-13b", {**_READER, "precision": ["w8a8"], "include": "rtx-3090"}, 1),
)  # fmt: skip


@pytest.mark.parametrize(("thread", "model", "options", "gpus"), QUESTIONS)
def test_the_first_answer_is_what_the_thread_found(
    thread: str, model: str, options: dict[str, Any], gpus: int | None
) -> None:
    choices = tl.recommend(model, **options, by="gpus").choices
    assert (choices[0].gpus if choices else None) == gpus, thread


def test_every_question_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "recommend.md").read_text(encoding="utf-8")
    assert not [thread for thread, *_ in QUESTIONS if f"https://github.com/{thread}" not in page]
