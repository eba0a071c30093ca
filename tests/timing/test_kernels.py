"""Kernel formulas: properties of physics, arrays as numbers, and facts that published measurements pin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma.hardware import find
from trilemma.timing.kernels import (
    KernelCoefficients,
    collective_s,
    convolution_s,
    decode_attention_s,
    experts_s,
    gemm_s,
    kernel_coefficients,
    mla_decode_s,
    mla_prefill_s,
    prefill_attention_s,
    state_decode_s,
    state_prefill_s,
)
from trilemma.timing.kernels.shapes import causal_pairs, rounded_max, seen, waves

CARDS = ("nvidia-h200-sxm", "nvidia-b200-sxm-180gb", "nvidia-l40s", "nvidia-rtx-4090", "amd-mi300x")
KERNELS = (
    "gemm", "decode_attention", "prefill_attention", "mla_decode", "mla_prefill", "experts", "state_decode",
    "state_prefill", "convolution", "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
)  # fmt: skip
SIZES = st.integers(min_value=1, max_value=6000)


def seconds(c: KernelCoefficients, a, b, heads):
    """One call of the kernel with shapes made from three numbers."""
    kv_heads = np.maximum(heads // 4, 1)
    match c.kernel:
        case "gemm":
            return gemm_s(c, a, b * 64, heads * 128)
        case "decode_attention":
            return decode_attention_s(c, a, b, heads, kv_heads, 128, window=128)
        case "prefill_attention":
            return prefill_attention_s(c, heads, a, heads, kv_heads, 128, cached=b)
        case "mla_decode":
            return mla_decode_s(c, a, b, heads)
        case "mla_prefill":
            return mla_prefill_s(c, heads, a, heads, cached=b)
        case "experts":
            return experts_s(c, a, 4096, b * 16, 8, 128, tp=2, ep=4, skew=1.01)
        case "state_decode":
            return state_decode_s(c, a, heads, 128, 128)
        case "state_prefill":
            return state_prefill_s(c, heads, a, heads, 128, 128)
        case "convolution":
            return convolution_s(c, heads, a, b)
        case _:
            return collective_s(c, a * b * 64, np.minimum(heads, 8))


def coefficients(card: str, kernel: str) -> KernelCoefficients:
    return kernel_coefficients(find(card), "vllm", kernel, head_dim=128, windowed=True)[0]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("card", CARDS)
@settings(max_examples=15)
@given(a=SIZES, b=SIZES, heads=st.integers(min_value=2, max_value=64), factor=st.floats(min_value=1.0, max_value=4.0))
def test_more_bandwidth_peak_or_link_never_lengthens_a_kernel(card, kernel, a, b, heads, factor):
    c = coefficients(card, kernel)
    slow = seconds(c, a, b, heads)
    assert np.isfinite(slow)
    assert slow > 0
    for figure in ("bytes_per_s", "flops_per_s", "link_bytes_per_s"):
        fast = seconds(replace(c, **{figure: getattr(c, figure) * factor}), a, b, heads)
        assert fast <= slow * (1 + 1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_array_is_its_numbers(kernel):
    c = coefficients("nvidia-h200-sxm", kernel)
    a, b, heads = np.array([1, 17, 300, 4096]), np.array([1, 64, 129, 2000]), np.array([2, 8, 32, 64])
    together = seconds(c, a, b, heads)
    assert together.shape == (4,)
    for i in range(4):
        assert seconds(c, int(a[i]), int(b[i]), int(heads[i])) == pytest.approx(together[i], rel=1e-12)


@pytest.mark.parametrize("card", CARDS)
@settings(max_examples=25)
@given(m=SIZES, n=st.integers(1, 300), k=st.integers(1, 300))
def test_more_rows_columns_or_steps_never_cost_less_than_a_wave(card, m, n, k):
    c = coefficients(card, "gemm")
    base = gemm_s(c, m, n * 64, k * 64)
    assert gemm_s(c, 4 * m, n * 64, k * 64) >= base * 0.8
    assert gemm_s(c, m, 4 * n * 64, k * 64) >= base * 0.8


def test_fewer_bits_move_fewer_bytes():
    card = find("nvidia-h200-sxm")
    wide, _ = kernel_coefficients(card, "vllm", "decode_attention", head_dim=128)
    shapes = (64, 8192, 8, 8, 128)
    assert decode_attention_s(wide, *shapes, kv_bytes=1.0) < decode_attention_s(wide, *shapes, kv_bytes=2.0)
    sheet, rung = kernel_coefficients(find("amd-mi300x"), "vllm", "gemm", "w4a16")
    assert rung.name == "spec sheet"
    half = replace(sheet, weight_bytes=sheet.weight_bytes / 2)
    assert gemm_s(half, 1, 8192, 8192) < gemm_s(sheet, 1, 8192, 8192)


@pytest.mark.parametrize("card", CARDS)
def test_a_window_bounds_what_decode_reads_and_prefill_multiplies(card):
    c = coefficients(card, "decode_attention")
    assert decode_attention_s(c, 32, 100_000, 8, 2, 128, window=128) == decode_attention_s(
        c, 32, 128, 8, 2, 128, window=128
    )
    p = coefficients(card, "prefill_attention")
    full, windowed = (prefill_attention_s(p, 1, 32768, 32, 8, 128, window=w) for w in (0, 128))
    assert windowed < full / 5


def test_causal_pairs_are_counted_one_by_one():
    for new, cached, window in ((1, 0, 0), (7, 3, 0), (7, 3, 4), (9, 0, 4), (5, 20, 6), (4, 2, 100)):
        counted = sum(min(cached + i, window or 10**9) for i in range(1, new + 1))
        assert causal_pairs(new, cached, window) == counted
    assert seen(10, 0) == 10
    assert seen(10, 4) == 4


def test_waves_and_rounded_maximum():
    assert waves(np.array([1, 132, 133]), 132, 1.0).tolist() == [1.0, 1.0, 2.0]
    assert waves(133, 132, 0.0) == pytest.approx(133 / 132)
    assert rounded_max(3.0, 0.0, 2.0) == 3.0
    assert rounded_max(3.0, 4.0, 2.0) == pytest.approx(5.0)


def test_ranks_beyond_and_below_the_measured_ones():
    c = coefficients("nvidia-h200-sxm", "all_reduce")
    size = 2.0**24
    assert collective_s(c, size, 1) == 0
    assert collective_s(c, size, 2) <= collective_s(c, size, 8) * 1.5
    assert collective_s(c, size, 16) >= collective_s(c, size, 8)
    alone = kernel_coefficients(find("apple-m4-max"), "vllm", "all_reduce")[0]
    assert np.isinf(collective_s(alone, size, 2))
    assert collective_s(alone, size, 1) == 0


def test_skewed_routing_wakes_fewer_experts_and_loads_the_busiest_rank():
    c = coefficients("nvidia-h200-sxm", "experts")
    few = experts_s(c, 16, 7168, 2048, 8, 256, skew=1.2)
    assert few <= experts_s(c, 16, 7168, 2048, 8, 256, skew=0.0) * 1.01
    many = experts_s(c, 16384, 7168, 2048, 8, 256, ep=8, skew=1.2)
    assert many >= experts_s(c, 16384, 7168, 2048, 8, 256, ep=8, skew=0.0) * 0.99


# Published measurements: ai-dynamo/aiconfigurator@095f58a51 operator tables (Apache-2.0), best and typical rates.
def test_large_products_reach_the_share_of_the_peak_that_was_measured():
    for card, dtype, low, high in (
        ("nvidia-h100-sxm5-80gb", "bf16", 0.65, 0.95),
        ("nvidia-h200-sxm", "bf16", 0.65, 0.95),
        ("nvidia-b200-sxm-180gb", "bf16", 0.55, 0.90),
        ("nvidia-b200-sxm-180gb", "nvfp4", 0.30, 0.60),
        ("nvidia-b300-sxm", "nvfp4", 0.22, 0.45),
    ):
        c, rung = kernel_coefficients(find(card), "vllm", "gemm", dtype)
        assert rung.name == "measured"
        share = 2 * 8192**3 / gemm_s(c, 8192, 8192, 8192) / c.flops_per_s
        assert low <= share <= high, (card, dtype, share)


def test_large_caches_stream_near_memory_bandwidth_and_small_ones_do_not():
    c, _ = kernel_coefficients(find("nvidia-h100-sxm5-80gb"), "vllm", "decode_attention", head_dim=128)
    large = 2 * 64 * 8192 * 8 * 128 * 2
    assert 0.75 <= large / decode_attention_s(c, 64, 8192, 32, 8, 128) / c.bytes_per_s <= 1.0
    small = 2 * 1 * 1024 * 8 * 128 * 2
    assert small / decode_attention_s(c, 1, 1024, 32, 8, 128) / c.bytes_per_s <= 0.25


def test_a_separate_quantisation_kernel_can_be_left_out():
    c, _ = kernel_coefficients(find("nvidia-h200-sxm"), "trtllm", "gemm", "fp8")
    apart, fused = gemm_s(c, 16, 4096, 4096), gemm_s(c, 16, 4096, 4096, fused_quantisation=True)
    assert fused < apart
    assert apart - fused > 5e-6  # 12 to 14 microseconds of floor against 2 to 3 of the 16-bit product
