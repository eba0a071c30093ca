"""A state block for each sequence: what releases of vLLM do when the pool has fewer."""

from __future__ import annotations

import pytest

import trilemma as tl

#: vllm-project/recipes, nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 on one H100, verified with 0.12 (default of 1,024 sequences).
NEMOTRON = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --trust-remote-code --async-scheduling --tensor-parallel-size 1"


@pytest.mark.parametrize(
    ("version", "starts"), [("0.12.0", True), ("0.18.0", True), ("0.19.0", False), ("0.28.0", False)]
)
def test_fewer_blocks_than_sequences_are_refused_since_0_19(version: str, starts: bool) -> None:
    """Pull requests 34571 (0.17) and 38270 (0.19); before them batches that are captured, 512 at most."""
    answer = tl.check(f"docker run vllm/vllm-openai:v{version} {NEMOTRON}", gpu="h100-sxm")
    assert answer.fits is starts, answer.reason
    if not starts:
        assert "a state block each is needed for 1,024 sequences" in answer.reason


def test_graphs_of_early_releases_die_without_a_block_for_each_captured_sequence() -> None:
    """vllm-project/vllm issue 34094: assert num_cache_lines >= batch."""
    words = f"{NEMOTRON} --gpu-memory-utilization 0.88"
    assert not tl.check(f"docker run vllm/vllm-openai:v0.16.0 {words}", gpu="h100-sxm").fits
    fewer = f"docker run vllm/vllm-openai:v0.16.0 {words} --max-cudagraph-capture-size 128"
    assert tl.check(fewer, gpu="h100-sxm").fits


def test_the_blocks_that_a_refusal_printed() -> None:
    """vllm-project/recipes pull request 551: Qwen3.6-27B-FP8 on an H100 at 0.95 has 856 blocks; 512 sequences start."""
    words = "docker run vllm/vllm-openai:v0.22.0 --model Qwen/Qwen3.6-27B-FP8 --gpu-memory-utilization 0.95"
    refused = tl.check(words, gpu="h100-sxm")
    assert not refused.fits
    blocks = int(refused.reason.split("the pool has ")[1].split(";")[0].replace(",", ""))
    assert blocks == pytest.approx(856, rel=0.03)
    assert tl.check(f"{words} --max-num-seqs 512", gpu="h100-sxm").fits
