"""What vLLM shows the tower and the language model in its profiling run, by what public start-ups printed and how they ended."""

from __future__ import annotations

from typing import Any

import pytest

import trilemma as tl
from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.vllm.facts import for_version
from trilemma.engines.vllm.overheads import Profiled
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import GIB

VIDEO = 65536  # patches of the largest image of Qwen2.5-VL: 12,845,056 pixels in patches of 14


def _start(model: str, *, gpu: str, version: str, tp: int = 1, **options: Any) -> StartUp:
    return engines.get("vllm").start_up(
        model=load_model(model), accelerator=find(gpu), layout=Layout(tp=tp), version=version,
        options=ServeOptions(**options),
    )  # fmt: skip


def _seen(model: str, version: str, context: int, limits: dict[str, int] | None = None) -> Profiled:
    return Profiled.of(load_model(model), for_version(version), context=context, limits=limits)


def test_v0_passes_every_image_and_video_through_the_language_model() -> None:
    """vllm-project/vllm pull request 12604: 131,072 tokens at 128,000, of them image 16,384 and video 114,688."""
    seen = _seen("qwen2.5-vl-7b", "0.7.2", 128000)
    assert seen.prompt_tokens == 131072
    assert seen.patches == 7 * VIDEO
    assert _seen("qwen2.5-vl-7b", "0.7.2", 8192).prompt_tokens == 2 * 16384
    assert _seen("qwen2.5-vl-7b", "0.7.2", 8192, {"image": 10, "video": 0}).prompt_tokens == 10 * 16384


def test_v1_profiles_the_tower_by_itself() -> None:
    assert _seen("qwen2.5-vl-7b", "0.10.1", 8192) == Profiled(patches=VIDEO)
    assert _seen("qwen2.5-vl-7b", "0.10.1", 131072).prompt_tokens == 0
    assert _seen("qwen2.5-vl-7b", "0.10.1", 131072, {"video": 0}) == Profiled(patches=VIDEO)


def test_qwen3_vl_kept_rows_for_its_longest_video_in_0_11_0_alone() -> None:
    """vllm/model_executor/models/qwen3_vl.py of 0.11.0: 12.5 times 12,288 tokens, whatever the context."""
    for context in (8192, 128000):
        assert _seen("qwen3-vl-235b-a22b", "0.11.0", context) == Profiled(patches=VIDEO, kept_tokens=153600)
    assert _seen("qwen3-vl-235b-a22b", "0.11.0", 8192, {"video": 0}) == Profiled(patches=VIDEO)
    assert _seen("qwen3-vl-235b-a22b", "0.15.0", 128000) == Profiled(patches=VIDEO)


def test_qwen3_vl_30b_alone_on_an_a100() -> None:
    """8.04 GiB are left at 0.9 whatever the context (9.2 told): 262,144 tokens are refused, 81,920 start."""
    for context, fits in ((262144, False), (81920, True)):
        words = f"docker run vllm/vllm-openai:v0.11.0 --gpu_memory_utilization 0.9 --max_model_len {context}"
        found = tl.check(f"{words} --model Qwen/Qwen3-VL-30B-A3B-Instruct", gpu="a100-sxm4-80gb")
        pool = next(line["bytes"] for line in found.to_dict()["memory"]["items"] if line["name"] == "kv_cache")
        assert found.fits is fits
        assert pool / GIB == pytest.approx(8.04, abs=1.25)


def test_towers_of_one_resolution_are_as_they_were() -> None:
    assert _seen("gemma-3-27b", "0.8.3", 4096) == Profiled(patches=(896 // 14) ** 2)


def test_an_rtx_3090_does_not_start_qwen2_5_vl_7b_on_v0() -> None:
    """gpustack/gpustack issue 1800: 2,400 tokens (0.13 GiB) where 8,192 were asked for; V1 starts with as many sequences."""
    said = tl.check(["docker", "run", "-e", "VLLM_USE_V1=0", "vllm/vllm-openai:v0.8.3", "Qwen/Qwen2.5-VL-7B-Instruct",
                     "--max-model-len", "8192"], gpu="rtx-3090")  # fmt: skip
    assert said.verdict.stage in ("oom_profile", "kv_too_small")
    start = _start("qwen2.5-vl-7b", gpu="rtx-3090", version="0.8.3", context=8192, extra={"VLLM_USE_V1": "0"})
    assert float(start.pool.available_bytes) / GIB == pytest.approx(0.13, abs=0.6)
    newer = _start("qwen2.5-vl-7b", gpu="rtx-3090", version="0.8.3", context=8192, max_seqs=256)
    assert float(newer.pool.tokens) > 8192


def test_the_switch_is_nothing_to_releases_without_the_older_engine() -> None:
    plain, asked = (
        _start("qwen3-8b", gpu="l40s", version="0.19.0", context=8192, extra=extra)
        for extra in ({}, {"VLLM_USE_V1": "0"})
    )
    assert float(plain.pool.tokens) == float(asked.pool.tokens)


def test_pooling_models_have_no_sampler() -> None:
    """QwenLM/Qwen3-Embedding issue 147: Qwen3-Embedding-4B at TP 2 and 0.15 of two L20 serves 32,768 tokens."""
    start = _start("qwen3-embedding-4b", gpu="l20", version="0.10.2", tp=2, context=32768, memory_fraction=0.15)
    assert float(start.pool.tokens) > 32768


def test_latents_were_cached_as_heads_before_0_7_1() -> None:
    """vllm/model_executor/models/deepseek_v2.py of 0.5: 128 heads padded to 256, K and V: 16 of them on a rank at TP 8."""
    old, new = (
        _start("deepseek-v2", gpu="h100-sxm", version=version, tp=8, context=4096) for version in ("0.5.4", "0.7.2")
    )
    assert float(old.pool.bytes_per_token_per_gpu) == 60 * 16 * 2 * 256 * 2
    assert float(new.pool.bytes_per_token_per_gpu) == 60 * (512 + 64) * 2
    assert any(one.code == "latents-as-heads" for one in old.warnings)
    assert not any(one.code == "latents-as-heads" for one in new.warnings)
