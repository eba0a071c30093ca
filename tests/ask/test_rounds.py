"""Rounds of reinforcement: update, passes of frozen models and generation together, against rounds that were published."""

from __future__ import annotations

import pytest

import trilemma as tl
from trilemma.ask.reinforced import round_seconds


@pytest.mark.parametrize(
    ("gpu", "layout", "length", "measured"),
    [
        ("h100-sxm:128", {"tp": 2, "cp": 2, "ep": 16, "pp": 8}, 5696, 395.0),
        ("h100-sxm:256", {"tp": 2, "cp": 2, "ep": 16, "pp": 8}, 5696, 312.0),
        ("gb200:64", {"tp": 2, "cp": 2, "ep": 16, "pp": 4}, 5696, 286.0),
        ("gb200:128", {"tp": 2, "cp": 2, "ep": 16, "pp": 4}, 5696, 345.0),
    ],
)
def test_published_rounds_of_grpo(gpu: str, layout: dict[str, int], length: int, measured: float) -> None:
    # NVIDIA-NeMo/RL docs/about/performance-summary.md, v0.6: Qwen3-235B, on policy, 512 answers
    update = tl.fit(
        "qwen3-235b-a22b", gpu, train=length, global_batch=512, micro_batch=1, engine="megatron", recompute="full", **layout
    )  # fmt: skip
    found = round_seconds(update, length - 300)
    assert found is not None
    assert found["low"] < measured < found["high"]
    assert found["value"] > update.speed.step_s.interval.value + found["passes"] + found["generation"]


def test_a_command_that_generates_tells_its_round() -> None:
    command = (
        "accelerate launch --num_processes 8 grpo.py --model_name_or_path Qwen/Qwen2.5-7B --use_vllm true --vllm_mode colocate"
        " --vllm_gpu_memory_utilization 0.3 --num_generations 8 --bf16 true --per_device_train_batch_size 8"
        " --gradient_accumulation_steps 8 --gradient_checkpointing true --max_completion_length 2048"
    )
    answer = tl.check(command, gpu="h100-sxm:8")
    (said,) = (one.message for one in answer.warnings if one.code == "update-only")
    assert "a whole round takes" in said
    assert "512 answers of 2,048 tokens" in said
    assert answer.training_step["micro_batch_s"]["forward"] > 0
    # twice the answers take about twice as long to generate, and at least as long in all
    found = round_seconds(answer, 2048)
    shorter = round_seconds(answer, 512)
    assert found is not None
    assert shorter is not None
    assert found["generation"] > 2 * shorter["generation"]
    assert found["passes"] == pytest.approx(shorter["passes"], rel=1e-9)
