"""Blocks, tokens and the longest request, pinned to what real engines printed for a pool of given size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trilemma import engines
from trilemma.engines.base import KvPool
from trilemma.engines.vllm.groups import group_pages
from trilemma.engines.vllm.pages import Pages
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, Layout, ServeOptions
from trilemma.quantities import GIB

_MTP = Draft(method="mtp", tokens=3)


def _pool(model: str, gib: float, *, gpu: str = "h100-sxm", tp: int = 1, dcp: int = 1, draft: Draft | None = None,
          version: str = "0.19.0", **options: Any) -> KvPool:  # fmt: skip
    """The pool of ``gib`` that a log printed."""
    return engines.get("vllm").start_up(
        model=load_model(model), accelerator=find(gpu), layout=Layout(tp=tp, dcp=dcp), draft=draft, version=version,
        options=ServeOptions(kv_cache_bytes=int(gib * GIB), **options),
    ).pool  # fmt: skip


@pytest.mark.parametrize(
    ("model", "layers", "heads", "dim"),
    [
        ("gemma-3-27b", 70, 16, 128),  # 52 sliding and 10 full layers in 7 groups of 10
        ("gemma-3-4b", 35, 4, 256),  # 29 and 5 in 7 groups of 5
        ("gemma-3-12b", 48, 8, 256),  # 40 and 8: no padding
        ("gemma-2-27b", 46, 16, 128),
    ],
)
def test_hybrid_groups_pay_for_padded_layers(model: str, layers: int, heads: int, dim: int) -> None:
    """llm-d-planner pull request 205: Gemma 3 27B pays 70 layers, 4B 35 (with 8192 tokens windows save nothing)."""
    pool = _pool(model, 20, context=8192, max_batched_tokens=8192)
    assert 20 * GIB / pool.tokens == pytest.approx(layers * heads * dim * 2 * 2, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "gib", "tp", "blocks", "tokens", "concurrency"),
    [
        ("gpt-oss-20b", 59.32, 2, 323972, 2591776, 316.07),
        ("gemma-3-4b", 62.51, 1, 204817, 468144, 57.05),
        ("gemma-2-9b", 54.12, 1, 21110, 168880, 20.60),
        ("llama-3.1-8b", 58.11, 1, 29751, 476016, 58.11),
        ("kimi-vl-a3b", 41.32, 1, 89148, 1426368, 174.12),
    ],
)
def test_blocks_as_printed_by_0_19(
    model: str, gib: float, tp: int, blocks: int, tokens: int, concurrency: float
) -> None:
    pool = _pool(model, gib, tp=tp, context=8192, max_batched_tokens=8192, block_size=16)
    assert pool.blocks == pytest.approx(blocks, rel=3e-4)
    assert pool.tokens == pytest.approx(tokens, rel=3e-4)
    assert pool.concurrency == pytest.approx(concurrency, rel=3e-4)


@pytest.mark.parametrize(
    ("kv", "draft", "context", "need_gib"),
    [
        ("fp8", _MTP, 131072, 4.88), ("fp8", _MTP, 262144, 9.13), ("bfloat16", _MTP, 131072, 9.13),
        ("bfloat16", _MTP, 262144, 17.64), ("int4_per_token_head", _MTP, 131072, 2.85),
        ("int4_per_token_head", _MTP, 262144, 5.03), ("fp8", None, 131072, 4.16), ("fp8", None, 262144, 8.18),
        ("bfloat16", None, 131072, 8.18), ("bfloat16", None, 262144, 16.17),
    ],
)  # fmt: skip
def test_what_one_request_of_a_recurrent_hybrid_needs(
    kv: str, draft: Draft | None, context: int, need_gib: float
) -> None:
    """``ceil(L / B) · B · a + M`` of Qwen3.8-27B, from deliberate refusals (malaiwah/qwen38-27b-exl3, receipts)."""
    pool = _pool("qwen3.8-27b", 2, gpu="rtx-5090", draft=draft, version="0.27", kv_dtype=kv, context=context)
    assert pool.need_bytes / GIB == pytest.approx(need_gib, abs=0.006)


@pytest.mark.parametrize(
    ("kv", "draft", "gib", "longest"),
    [("fp8", _MTP, 1.9, 38400), ("bfloat16", _MTP, 2.3, 25600), ("int4_per_token_head", _MTP, 2.3, 99328),
     ("fp8", None, 2.09, 62720), ("bfloat16", None, 2.09, 31360), ("fp8", None, 4.08, 128576)],
)  # fmt: skip
def test_estimated_maximum_length(kv: str, draft: Draft | None, gib: float, longest: int) -> None:
    pool = _pool("qwen3.8-27b", gib, gpu="rtx-5090", draft=draft, version="0.27", kv_dtype=kv, context=131072)
    assert pool.max_context == longest


def test_prefix_caching_of_recurrent_hybrids_takes_a_block_more() -> None:
    """9.38 GiB of FP8 cache with states kept at block boundaries: 263,608 tokens (same source)."""
    pool = _pool(
        "qwen3.8-27b",
        9.38,
        gpu="rtx-5090",
        draft=_MTP,
        version="0.27",
        kv_dtype="fp8",
        context=262144,
        prefix_caching=True,
    )
    assert (pool.tokens, pool.block_size) == (263608, 1600)


@pytest.mark.parametrize(
    ("model", "kv", "tp", "per_token"),
    [
        ("glm-5.1-fp8", "fp8", 8, 61464), ("glm-5.1-fp8", "bfloat16", 8, 78 * (1152 + 132)),
        ("deepseek-v3.2", "fp8", 8, 61 * 788), ("kimi-k2", "bfloat16", 1, 70272), ("kimi-k2", "fp8", 8, 35136),
        ("deepseek-v2-lite", "bfloat16", 2, 31104), ("llama-3-70b", "bfloat16", 1, 327680),
        ("llama-3-70b", "bfloat16", 16, 40960),
    ],
)  # fmt: skip
def test_bytes_per_token(model: str, kv: str, tp: int, per_token: int) -> None:
    """Latents are whole on every rank; heads are not split below one."""
    pool = _pool(model, 20, gpu="b200", tp=tp, kv_dtype=kv, context=4096)
    assert pool.bytes_per_token_per_gpu == pytest.approx(per_token, rel=1e-9)


def test_decode_context_parallelism_multiplies_tokens() -> None:
    """GLM-5.1 on eight RTX PRO 6000: 19.47 GiB print 1,360,384 tokens at DCP 4 (local-inference-lab/rtx6kpro)."""
    pool = _pool(
        "glm-5.1-fp8", 19.47, gpu="rtx-pro-6000", tp=8, dcp=4, version="0.20.2", kv_dtype="fp8", context=202752
    )
    assert (pool.tokens, pool.block_size) == (1360384, 64)
    assert pool.concurrency == pytest.approx(6.71, abs=0.01)


def test_compressed_caches_and_replicas() -> None:
    """DeepSeek-V4-Flash on eight B200 at 1M tokens: 20.43 requests with TP 8, 156.9 with eight replicas (issue 51454)."""
    model, gpu = load_model("deepseek-v4-flash"), find("b200")
    options = ServeOptions(memory_fraction=0.95, context=1048576, max_seqs=256, max_batched_tokens=8192)
    tensor, data = (
        engines.get("vllm")
        .start_up(model=model, accelerator=gpu, layout=layout, options=options, version="0.25.0")
        .pool
        for layout in (Layout(tp=8, ep=8), Layout(dp=8, ep=8))
    )
    assert tensor.concurrency == pytest.approx(20.43, rel=0.05)
    assert 8 * data.concurrency == pytest.approx(156.9, rel=0.05)
    assert 8 * data.concurrency / tensor.concurrency == pytest.approx(7.68, rel=0.05)


def test_need_of_compressed_caches() -> None:
    """6.66 GiB for 30,000 tokens with batches of 16,384 (issue 44376), 1.34 for 131,072 with batches of 2048."""
    short = _pool("deepseek-v4-flash", 5.44, tp=2, version="0.22", context=30000, max_batched_tokens=16384)
    long = _pool("deepseek-v4-flash", 0.3, tp=4, version="0.22", context=131072, max_batched_tokens=2048)
    assert short.need_bytes / GIB == pytest.approx(6.66, abs=0.01)
    assert long.need_bytes / GIB == pytest.approx(1.34, abs=0.01)


def test_printed_tokens_changed_in_0_21() -> None:
    """Gemma 4 31B on about 50 GB of cache: 55,000 tokens with 0.20, 525,000 with 0.21 (issue 43308)."""
    old, new = (
        _pool("gemma-4-31b", 46.6, gpu="a100-sxm-80gb", version=v, context=262144).tokens for v in ("0.20.0", "0.21.0")
    )
    assert old == pytest.approx(55000, rel=0.15)
    assert new == pytest.approx(525000, rel=0.1)


def test_windows_save_nothing_on_short_contexts() -> None:
    short = _pool("gpt-oss-20b", 30, context=8192, max_batched_tokens=8192)
    long = _pool("gpt-oss-20b", 30, context=131072, max_batched_tokens=8192)
    assert short.concurrency * 8192 < 0.6 * long.concurrency * 131072


def test_old_versions_keep_every_token_of_windows() -> None:
    pool = _pool("gpt-oss-20b", 30, version="0.9.2", context=131072)
    assert pool.bytes_per_token_per_gpu == 24 * 2 * 8 * 64 * 2


def test_blocks_times_block_size_is_the_longest_request() -> None:
    """229 blocks of 16 tokens: 3664 tokens, 4096 refused (vllm-project/vllm issue 2418)."""
    pool = _pool("llama-2-7b", 229 * 16 * 524288 / GIB, gpu="l4", version="0.2.7", context=4096)
    assert (pool.blocks, pool.tokens, pool.max_context) == (229, 3664, 3664)
    assert pool.need_bytes > 229 * 16 * 524288


def test_concurrency_of_issue_11251() -> None:
    """3852 blocks of 16 tokens for requests of 40,000: 1.54x."""
    pool = _pool("llama-2-7b", 3852 * 16 * 524288 / GIB, version="0.6.4", context=40000)
    assert (pool.blocks, round(pool.concurrency, 2)) == (3852, 1.54)


def test_405b_at_full_context_is_refused() -> None:
    """vllm-project/vllm issue 6746: 79,392 tokens fit 4.77 GiB a GPU at TP 8; 131,072 need 7.875."""
    pool = _pool("llama-3.1-405b-fp8", 79392 * 2 * 126 * 128 * 2 / GIB, tp=8, version="0.5.3", context=131072)
    assert pool.need_bytes / GIB == 7.875
    assert pool.max_context == 79392


def test_states_need_a_block_for_every_sequence() -> None:
    """Qwen3.6-27B-FP8 on an H100: 856 blocks are fewer than the default 1024 sequences (recipes pull request 551, 2026-06)."""
    start = engines.get("vllm").start_up(
        model=load_model("qwen3.6-27b-fp8"), accelerator=find("h100-sxm"), layout=Layout(), version="0.22.0",
        options=ServeOptions(memory_fraction=0.95, max_seqs=1024, context=262144),
    )  # fmt: skip
    assert start.pool.blocks == pytest.approx(856, rel=0.03)
    assert start.pool.least_blocks == 1024


def _kind(rule: Any, layers: range, page: float, block: int = 16, **more: Any) -> Pages:
    return Pages(rule=rule, layers=tuple(layers), block=block, page_bytes=np.array([page]), **more)


def test_group_size_takes_the_larger_kind_when_they_are_close() -> None:
    """12 sliding and 13 full layers (gpt-oss with a draft): two groups of 13, not three of 12."""
    kinds = [_kind("window", range(12), 100, span=128), _kind("full", range(12, 25), 100)]
    close = group_pages(kinds, ratio=1.5, state_alignment=16, least_block=16, packed=False)
    strict = group_pages(kinds, ratio=1.0, state_alignment=16, least_block=16, packed=False)
    assert close is not None
    assert strict is not None
    assert [len(group.layers) for group in close.groups] == [12, 13]
    assert len(strict.groups) == 3


def test_unequal_pages_grow_their_blocks() -> None:
    kinds = [_kind("window", range(10), 400, span=64), _kind("full", range(10, 15), 100)]
    grouping = group_pages(kinds, ratio=1.0, state_alignment=16, least_block=16, packed=False)
    assert grouping is not None
    assert {group.pages.rule: int(group.pages.block[0]) for group in grouping.groups if group.pages.rule == "full"} == {
        "full": 64
    }
    assert grouping.block_bytes(start=0, stop=15, depth=15) == 5 * 400


def test_models_without_a_cache() -> None:
    assert group_pages([], ratio=1.0, state_alignment=16, least_block=16, packed=False) is None
