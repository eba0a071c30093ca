"""Bytes and FLOPs of single kernels against counts made by hand from the cited papers; everything else of a kernel switched off.

A card whose arithmetic is infinitely fast shows the bytes of a kernel in its seconds, one whose memory is shows the FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trilemma.timing.kernels import (
    KernelCoefficients,
    collective_s,
    convolution_s,
    decode_attention_s,
    experts_s,
    gemm_s,
    mla_decode_s,
    mla_prefill_s,
    prefill_attention_s,
    state_decode_s,
    state_prefill_s,
)
from trilemma.timing.kernels.formulas import parameters_of

_FAST = 1e30
_RATE = 1e12
#: Shares are one, times are none, a rounded maximum is the maximum.
_ONE = ("share", "l2_fraction", "power", "gain", "active_shrink", "widest_group", "splits")


def plain(kernel: str, **more: float) -> KernelCoefficients:
    """Coefficients under which a kernel costs its bytes and its FLOPs and nothing else."""
    values = {
        one.name: 1.0 if any(word in one.name for word in _ONE) else 0.0 for one in parameters_of(kernel)
    } | {"overlap_power": 20.0, "widest_group": 1024.0, "activation_passes": 0.0}  # fmt: skip
    figures = {name: more.pop(name, _FAST) for name in ("flops_per_s", "bytes_per_s", "link_bytes_per_s")}
    weight_bytes = more.pop("weight_bytes", 2.0)
    return KernelCoefficients(
        kernel=kernel, engine="any", dtype="bf16", values=values | more, multiprocessors=0.0, l2_bytes=0.0,
        weight_bytes=weight_bytes, **figures,
    )  # fmt: skip


def counts(kernel: str, call: Callable[[KernelCoefficients], Any], **more: float) -> tuple[float, float]:
    """(bytes, FLOPs) of one call."""
    moved = float(call(plain(kernel, bytes_per_s=_RATE, **more))) * _RATE
    done = float(call(plain(kernel, flops_per_s=_RATE, **more))) * _RATE
    return moved, done


def test_recurrent_step_reads_and_writes_every_state_once() -> None:
    # Mamba-2 and gated delta networks keep states in 32 bits: read, decayed, updated with an outer product, read out.
    moved, done = counts("state_decode", lambda c: state_decode_s(c, 3, 8, 128, 64))
    state = 3 * 8 * 128 * 64
    assert moved == pytest.approx(2 * 4 * state + 2 * 3 * 8 * (128 + 128 + 64 + 64))
    assert done == pytest.approx(6 * state)


def test_recurrent_step_of_a_wide_batch_pays_by_channels() -> None:
    time = float(state_decode_s(plain("state_decode", sequence_us=2.0), 3, 8, 128, 64))
    assert time == pytest.approx(2e-6 * 3 * 8 * 64 / 1024)
    assert float(convolution_s(plain("convolution", sequence_us=2.0), 3, 5, 2048)) == pytest.approx(2e-6 * 3 * 2)


def test_chunked_scan_counts_a_chunk_of_64_tokens() -> None:
    # Yang et al. 2024, Gated Delta Networks, section 3.3: 2·64·(3 key + 2 value) and 4·key·value FLOPs a token and head.
    moved, done = counts("state_prefill", lambda c: state_prefill_s(c, 2, 100, 4, 128, 64))
    assert done == pytest.approx(2 * 4 * 128 * (2 * 64 * (3 * 128 + 2 * 64) + 4 * 128 * 64))
    assert moved == pytest.approx(2 * 4 * (2 * 100 * (4 * 128 + 6 * 64) + 2 * (2 * 4 * 128 * 64)))
    late = float(state_prefill_s(plain("state_prefill", chunk_us=3.0), 2, 129, 4, 128, 64))
    assert late == pytest.approx(3 * 3e-6)


def test_short_convolution_reads_and_writes_its_channels() -> None:
    moved, done = counts("convolution", lambda c: convolution_s(c, 2, 100, 512))
    assert moved == pytest.approx(2 * 2 * 2 * 100 * 512)
    assert done == pytest.approx(0.0, abs=1.0)


def test_latent_decode_reads_one_latent_for_all_heads() -> None:
    # DeepSeek-V2 (2024), section 2.1.2: 512 + 64 elements a token, scores over 576 of them and sums over 512.
    moved, done = counts("mla_decode", lambda c: mla_decode_s(c, 3, 1000, 20, kv_bytes=1.0))
    assert moved == pytest.approx(3 * (1000 * 576 * 1 + 20 * (576 + 512) * 2))
    assert done == pytest.approx(2 * 3 * 32 * 1000 * (576 + 512))


def test_latent_prefill_has_a_key_and_a_value_for_every_head() -> None:
    # 256 tokens in two blocks of 128 queries: 1 + 2 tiles of 128 x 128 pairs, 2·(192 + 128) FLOPs a pair.
    moved, done = counts("mla_prefill", lambda c: mla_prefill_s(c, 1, 256, 16))
    assert done == pytest.approx(16 * 3 * 128 * 128 * 2 * (192 + 128))
    assert moved == pytest.approx(256 * (16 * 320 * 2 * 2 + 16 * 320 * 2))


def test_decode_attention_reads_keys_and_values_once() -> None:
    moved, done = counts("decode_attention", lambda c: decode_attention_s(c, 3, 1000, 24, 8, 128, kv_bytes=1.0))
    assert moved == pytest.approx(2 * 3 * 1000 * 8 * 128 * 1 + 2 * 3 * 24 * 128 * 2)
    assert done == pytest.approx(4 * 3 * 8 * 16 * 1000 * 128)


def test_prefill_attention_multiplies_tiles_under_the_mask() -> None:
    # 128 cached tokens are one tile before each block: 2 + 3 tiles of 128 x 128 pairs for 256 tokens.
    moved, done = counts(
        "prefill_attention", lambda c: prefill_attention_s(c, 1, 256, 16, 4, 128, cached=128, kv_bytes=1.0)
    )
    assert done == pytest.approx(16 * 5 * 128 * 128 * 4 * 128)
    assert moved == pytest.approx(256 * (2 * (16 + 4) * 128 * 2 + 2 * 4 * 128) + 128 * 2 * 4 * 128)


def test_experts_stream_those_that_rows_meet() -> None:
    # 3 tokens to 2 of 16 experts meet 6 at most; gated experts are three matrices of hidden x columns.
    moved, done = counts("experts", lambda c: experts_s(c, 3, 256, 512, 2, 16), weight_bytes=0.5)
    assert moved == pytest.approx(6 * 3 * 256 * 512 * 0.5)
    assert done == pytest.approx(6 * 16 * 2 * 3 * 256 * 512)
    plain_experts, _ = counts("experts", lambda c: experts_s(c, 3, 256, 512, 2, 16, matrices=2))
    assert plain_experts == pytest.approx(6 * 2 * 256 * 512 * 2)


def test_experts_over_ranks_share_columns_and_rows() -> None:
    moved, done = counts("experts", lambda c: experts_s(c, 1024, 256, 512, 2, 16, tp=2, ep=4))
    assert moved == pytest.approx(4 * 3 * 256 * 256 * 2)
    # 1,024 tokens x 2 choices over 4 ranks: 512 rows, 128 for each of 4 experts.
    assert done == pytest.approx(512 * 2 * 3 * 256 * 256)


def test_experts_read_and_write_routed_rows() -> None:
    time = float(
        experts_s(plain("experts", bytes_per_s=_RATE, activation_passes=1.0, weight_bytes=0.0), 8, 256, 512, 2, 16)
    )
    assert time * _RATE == pytest.approx(2 * (16 * (2 * 256 + 3 * 512) + 2 * 8 * 256))


def test_experts_cost_time_for_each_that_is_held() -> None:
    assert float(experts_s(plain("experts", expert_us=2.0), 3, 256, 512, 2, 16, ep=4)) == pytest.approx(4 * 2e-6)


@pytest.mark.parametrize(
    ("kernel", "factor"), [("all_reduce", 2.0), ("all_gather", 1.0), ("reduce_scatter", 1.0), ("all_to_all", 1.0)]
)
def test_collectives_carry_the_volume_of_nccl_tests(kernel: str, factor: float) -> None:
    # nccl-tests, doc/PERFORMANCE.md: bus bandwidth = algorithm bandwidth · 2(n − 1)/n, and (n − 1)/n for the others.
    for ranks in (2, 4, 8):
        time = float(collective_s(plain(kernel, link_bytes_per_s=_RATE), 1e9, ranks))
        assert time * _RATE == pytest.approx(factor * (ranks - 1) / ranks * 1e9)
        assert float(collective_s(plain(kernel, floor_us_2=7.0, floor_us_4=7.0, floor_us_8=7.0), 1e9, ranks)) == (
            pytest.approx(7e-6)
        )


def test_a_product_reads_weights_and_rows_and_writes_columns() -> None:
    moved, done = counts("gemm", lambda c: gemm_s(c, 128, 512, 256), weight_bytes=1.0)
    assert moved == pytest.approx(512 * 256 * 1 + 2 * 128 * (256 + 512))
    assert done == pytest.approx(2 * 128 * 512 * 256)
