"""What a search says of the plans that it looked at: every one of them is shown, or lost for a reason that is counted once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from asking import document

SERVING = (
    "plan llama-3.1-8b --gpu h100-sxm:4 --serve 2000/300 --tpot 20",
    "plan llama-3.1-8b --gpu h100-sxm:2 --serve 2000/300 --concurrency 16",
    # Weights in 16 bits fit no card alone: engines that die at different stages are counted by stage.
    "plan llama-3.1-70b --gpu h100-sxm:4 --serve 30000/300 --precision bf16,fp8",
    "plan llama-3.1-70b --gpu a100-sxm4-80gb:2 --serve 60000/300 --precision bf16",
    "plan qwen3-30b-a3b --gpu h200-sxm:4 --serve 4000/500 --rate 2",
    "plan llama-3.1-8b --gpu l40s:4 --serve 1000/100 --concurrency 64 --pools both",
    "plan qwen3-14b --gpu rtx-4090:2 --serve 1000/100 --engine llama.cpp",
    "plan qwen3-32b --gpu h100-sxm:4 --serve 1000/100 --engine sglang",
    "plan qwen3-32b --gpu h100-sxm:4 --serve 1000/100 --engine tensorrt-llm",
)
TRAINING = (
    "plan llama-3.1-8b --gpu h100-sxm:8 --train 4096 --global-batch 64",
    "plan qwen3-30b-a3b --gpu h200-sxm:8 --train 4096 --global-batch 32",
    "plan llama-3.1-70b --gpu h100-sxm:8 --train 8192 --global-batch 16 --engine torchtitan",
)
FIRST_LAWS = (
    "sharded",
    "interleaving",
    "tp ",
    "cp ",
    "ep ",
    "more pipeline",
    "chunks",
    "micro-batch x",
    "torchtitan cuts",
)


def counted(found: Mapping[str, Any]) -> dict[str, int]:
    return {one["why"]: one["count"] for one in found["rejected"]}


@pytest.mark.parametrize("words", SERVING)
def test_every_plan_searched_is_shown_or_rejected(words: str) -> None:
    found = document(words, code=None)
    shown = len(found["plans"]) if found["fitting"] else 0
    assert found["searched"] == sum(counted(found).values()) + shown
    assert found["searched"] >= found["legal"] >= found["fitting"] >= shown


@pytest.mark.parametrize("words", SERVING[2:4])
def test_plans_that_die_at_start_are_those_that_do_not_fit(words: str) -> None:
    found = document(words, code=None)
    died = ("weights do not fit", "nothing of the budget", "KV cache too small", "memory outside", "too little memory")
    dead = sum(count for why, count in counted(found).items() if why.startswith((*died, "pipeline stages in pools")))
    assert dead > 0
    assert found["legal"] - found["fitting"] == dead


@pytest.mark.parametrize("words", TRAINING)
def test_every_training_plan_is_unlawful_or_does_not_fit_or_fits(words: str) -> None:
    found = document(words, code=None)
    why = counted(found)
    unfit = sum(count for text, count in why.items() if "does not fit" in text)
    assert found["searched"] - found["fitting"] == sum(why.values())
    assert found["legal"] - found["fitting"] == unfit
    assert found["searched"] - found["legal"] == sum(why.values()) - unfit


def test_plans_searched_do_not_depend_on_the_memory_of_a_card() -> None:
    # The space is that of layouts, precisions and batches; what does not fit is looked at all the same.
    words = "plan llama-3.1-70b --gpu {}:4 --serve 30000/300 --precision bf16 --kv-dtype auto --pools aggregated"
    found = [document(words.format(gpu), code=None) for gpu in ("h200-sxm", "h100-sxm", "a100-sxm4-40gb", "rtx-4090")]
    assert len({one["searched"] for one in found}) == 1
    assert found[0]["fitting"] > found[1]["fitting"] > found[2]["fitting"] == found[3]["fitting"] == 0
    assert counted(found[3]) == {"weights do not fit the card": found[3]["searched"]}


def test_an_unlawful_layout_loses_once_for_every_batch() -> None:
    # Three ranks divide no 32 heads; without a load every batch size of a layout is a plan of its own.
    words = "plan llama-3.1-8b --gpu h100-sxm:6 --serve 2000/300 --precision bf16 --kv-dtype auto --pools aggregated"
    rule = "tp does not divide the 32 attention heads"
    layouts = counted(document(f"{words} --concurrency 8"))[rule]
    lost = counted(document(words))[rule]
    assert lost % layouts == 0
    assert lost // layouts > 20
