"""What SGLang's model classes hold on a rank where they differ from other engines': embeddings, towers, tables of rotations."""

from __future__ import annotations

import pytest

import trilemma as tl

GIB = 2**30
GEMMA = "docker run lmsysorg/sglang:v0.5.12 python3 -m sglang.launch_server --model google/gemma-4-31B-it-AWQ"


def weights_gib(command: str, gpu: str) -> float:
    lines = tl.check(command, gpu=gpu).memory.ledger
    return sum(float(line.bytes) for line in lines if line.name in ("weights", "vision")) / GIB


def test_gemma_keeps_its_embedding_whole_on_every_rank() -> None:
    """mattbucci/2x-3090-…-sglang-inference: 11.07 GiB a rank of gemma-4-31B in AWQ on two RTX 3090 (Load weight end); with the
    embedding cut it would be 1.3 GiB less."""
    assert weights_gib(f"{GEMMA} --tp 2", "rtx-3090:2") == pytest.approx(11.07, rel=0.01)


def test_other_families_cut_theirs() -> None:
    qwen = "docker run lmsysorg/sglang:v0.5.12 python3 -m sglang.launch_server --model Qwen/Qwen3-8B"
    whole, half = weights_gib(qwen, "l40s"), weights_gib(f"{qwen} --tp 2", "l40s:2")
    table = 40960 * 128 * 4 / GIB
    assert half == pytest.approx((whole - table) / 2 + table, rel=1e-3)


def test_the_table_of_rotations_is_of_32_bits_on_nvidia() -> None:
    """Llama-3.1-8B on an RTX A6000 under 0.5.18: 15.02 GiB (HeadKV's logs), 14.96 of them parameters."""
    llama = "python3 -m sglang.launch_server --model meta-llama/Llama-3.1-8B-Instruct"
    nvidia, amd = (f"docker run lmsysorg/sglang:v0.5.18{build} {llama}" for build in ("", "-rocm720-mi30x"))
    assert weights_gib(nvidia, "rtx-a6000") == pytest.approx(15.02, abs=0.005)
    more = weights_gib(nvidia, "h100-sxm") - weights_gib(amd, "mi300x")
    assert more == pytest.approx(131072 * 128 * 2 / GIB, abs=1e-3)


def test_graphs_of_prompts_take_what_the_engine_keeps_back_for_them() -> None:
    """server_args.py 0.5.10 and later, _handle_gpu_memory_settings: 8 MiB for each length of prompt that is captured."""
    words = "docker run lmsysorg/sglang:v0.5.18 python3 -m sglang.launch_server --model Qwen/Qwen3-8B --mem-fraction-static 0.8"
    captured, without = (
        float(tl.check(words + more, gpu="h100-sxm").memory.ledger["cuda_graphs"].bytes)
        for more in ("", " --cuda-graph-backend-prefill disabled")
    )
    lengths = (captured - without) / (8 * 2**20)
    assert lengths == pytest.approx(round(lengths), abs=1e-6)
    assert 50 <= lengths <= 80


V4_PRO = "sglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --trust-remote-code"


def scales_gib(version: str, gpu: str, more: str = "") -> float:
    """What 0.5.16, which drops them, does not hold."""
    words = (f"docker run lmsysorg/sglang:v{one} {V4_PRO} {more}" for one in (version, "0.5.16"))
    held, dropped = (weights_gib(one, gpu) for one in words)
    return held - dropped


def test_scales_of_experts_stay_beside_those_that_marlin_was_given() -> None:
    """SemiAnalysisAI/InferenceX issue 2128 (2026-07-09): 125.65 GB a rank of DeepSeek-V4-Pro on eight H200; sgl-project/sglang
    pull request 29797: 11.48 GB less a rank of 16 once the 32-bit scales that were loaded are dropped."""
    held = weights_gib(f"docker run lmsysorg/sglang:v0.5.14 {V4_PRO} --tp 8", "h200-sxm:8")
    assert held == pytest.approx(125.65, rel=0.01)
    assert scales_gib("0.5.14", "h20-96gb:16", "--tp 16 --dp 8 --enable-dp-attention") == pytest.approx(11.48, rel=0.03)


def test_other_kernels_and_releases_hold_no_scales_twice() -> None:
    assert scales_gib("0.5.14", "b200:8", "--tp 8") == 0
    assert scales_gib("0.5.14", "b200:8", "--tp 8 --moe-runner-backend marlin") == pytest.approx(22.5, rel=0.01)
    gpt_oss = (
        f"docker run lmsysorg/sglang:v{one} sglang serve --model-path openai/gpt-oss-120b"
        for one in ("0.5.14", "0.5.16")
    )
    assert len({weights_gib(one, "h100-sxm") for one in gpt_oss}) == 1
