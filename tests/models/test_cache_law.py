"""What layers keep, pinned by figures that engines print."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.attention import CompressedAttention, LatentAttention, Mixer, RecurrentState, SoftmaxAttention
from trilemma.models.resolve import load_model

BF16 = catalogue.get("bf16")
FP8 = catalogue.get("fp8_e4m3")
#: vLLM's int4_per_token_head: one FP32 scale for each token and head of K and of V.
INT4_ROWS = Format(name="int4_per_token_head", bits=4, kind="int", granularity="channel", scale_bits=32)


def rate(name: str, *, tp: int = 1, kv_format: Format = BF16) -> float:
    """Bytes a token on one rank, all layers that grow without bound or whose window is not full."""
    model = load_model(name)
    laws = [(mixer.cache_law(tp=tp, kv_format=kv_format), count) for mixer, count in model.mixers.items()]
    return float(sum(law.bytes_per_token * count / law.stride for law, count in laws))


@pytest.mark.parametrize(
    ("name", "tp", "kv_format", "printed"),
    [
        ("llama-3-70b", 1, BF16, 327_680),
        ("llama-3-70b", 8, BF16, 40_960),
        ("llama-3-70b", 16, BF16, 40_960),
        ("llama-3.1-8b", 1, FP8, 65_536),
        ("granite-3.1-8b", 1, BF16, 163_840),
        ("granite-3.1-2b", 1, BF16, 81_920),
        ("mistral-small-3.1-24b", 1, BF16, 163_840),
        ("mistral-small-3.1-24b", 2, BF16, 81_920),
        ("deepseek-v2-lite", 1, BF16, 31_104),
        ("kimi-vl-a3b", 2, BF16, 31_104),
        ("kimi-k2", 8, BF16, 70_272),
        ("kimi-k2", 8, FP8, 35_136),
        ("deepseek-v3.2", 8, FP8, 48_068),
        ("glm-5.1", 8, FP8, 61_464),
        ("glm-5", 8, BF16, 100_152),
        ("qwen3.6-27b", 1, BF16, 65_536),
        ("qwen3.6-27b", 1, FP8, 32_768),
        ("qwen3.6-27b", 1, INT4_ROWS, 16_896),
    ],
)
def test_rates_that_vllm_logs(name: str, tp: int, kv_format: Format, printed: int) -> None:
    """Start-up logs and refusals gathered from vLLM issues, pull requests and receipts (2024 to 2026)."""
    assert rate(name, tp=tp, kv_format=kv_format) == printed


def test_an_mtp_layer_adds_one_layer_of_cache() -> None:
    """GLM-5.1 with MTP prints 62,242 to 62,259 bytes a token: 79 layers of 656 + 132."""
    model = load_model("glm-5.1")
    (layer,) = model.mtp_layers
    assert layer.mixer is not None
    extra = layer.mixer.cache_law(tp=8, kv_format=FP8).bytes_per_token
    assert rate("glm-5.1", tp=8, kv_format=FP8) + extra == 62_252


def test_windows_are_told_apart() -> None:
    """Gemma-3-27B: 52 sliding layers of 1024 tokens beside 10 full ones; gpt-oss: half of 128; Scout: 36 chunked, 12 full."""
    for name, kinds in (
        ("gemma-3-27b", {("sliding", 1024): 52, ("full", None): 10}),
        ("gpt-oss-20b", {("sliding", 128): 12, ("full", None): 12}),
        ("llama-4-scout", {("chunked", 8192): 36, ("full", None): 12}),
    ):
        found: dict[tuple[str, Any], int] = {}
        for mixer, count in load_model(name).mixers.items():
            law = mixer.cache_law(tp=1, kv_format=BF16)
            found[law.kind, law.window] = found.get((law.kind, law.window), 0) + count
        assert found == kinds, name


def test_delta_net_state() -> None:
    """Qwen3.6-27B: 0.14 GiB of state a request (refusals of vLLM on an RTX 5090): 48 layers of FP32 state and a conv tail."""
    model = load_model("qwen3.6-27b")
    (state,) = (mixer for mixer in model.mixers if isinstance(mixer, RecurrentState))
    law = state.cache_law(tp=1, kv_format=FP8)
    assert law.fixed_bytes == 48 * 128 * 128 * 4 + 10_240 * 3 * 2
    assert round(48 * float(law.fixed_bytes) / 2**30, 2) == 0.14
    drafts = state.cache_law(tp=1, kv_format=FP8, speculative_tokens=3)
    assert drafts.fixed_bytes - law.fixed_bytes == 10_240 * 3 * 2


def test_mamba2_groups_are_copied_beyond_their_number() -> None:
    """vLLM's MambaStateShapeCalculator.mamba2_state_shape with eight groups over sixteen ranks: eight groups more."""
    state = RecurrentState(
        kind="mamba2", heads=128, key_heads=8, state_rows=64, state_columns=128, conv_channels=10_240, conv_width=4
    )
    tp = np.array([1, 2, 8, 16])
    conv = np.array([10_240, 5_120, 1_280, (8_192 + 2 * 16 * 128) // 16]) * 3 * 2
    assert (state.cache_law(tp=tp, kv_format=BF16).fixed_bytes == 128 // tp * 64 * 128 * 4 + conv).all()


def test_unequal_keys_and_values() -> None:
    """MiMo-V2-Flash: four KV heads with keys of 192 and values of 128."""
    mixer = SoftmaxAttention(heads=64, kv_heads=4, k_dim=192, v_dim=128)
    assert mixer.cache_law(tp=1, kv_format=BF16).bytes_per_token == 4 * (192 + 128) * 2


def test_compressed_attention_keeps_strides_windows_and_states() -> None:
    """DeepSeek-V4 in vLLM: entries of 584 bytes, indexer keys of 132, FP32 rows of the compressors."""
    mixer = CompressedAttention(
        heads=64, head_dim=512, rope_dim=64, q_rank=1024, stride=4, window=128, index_heads=64, index_dim=128
    )
    parts = {(law.kind, law.bytes_per_token): law for law in mixer.cache_laws(tp=8, kv_format=FP8)}
    assert parts["compressed", 584].stride == 4
    assert parts["indexer", 132].stride == 4
    assert parts["window", 584].window == 128
    assert parts["compressor", 2 * 2 * 512 * 4].window == 8
    assert parts["compressor", 2 * 2 * 128 * 4].window == 8
    whole = mixer.cache_law(tp=8, kv_format=FP8)
    assert (whole.bytes_per_token, whole.stride) == (584 + 132, 4)
    assert whole.fixed_bytes == 128 * 584 + 8 * (8192 + 2048)


def test_layers_that_borrow_a_cache_keep_none() -> None:
    mixer = SoftmaxAttention(heads=8, kv_heads=2, k_dim=256, v_dim=256, shares_cache=True)
    assert mixer.cache_law(tp=1, kv_format=BF16).bytes_per_token == 0


def test_cross_attention_keeps_the_image() -> None:
    mixer = SoftmaxAttention(heads=32, kv_heads=8, k_dim=128, v_dim=128, cross_tokens=6404)
    law = mixer.cache_law(tp=2, kv_format=BF16)
    assert (law.bytes_per_token, law.fixed_bytes) == (0, 6404 * 4 * 256 * 2)


_sizes = st.sampled_from([16, 64, 72, 128, 192, 256])
_softmax = st.builds(
    lambda groups, kv, k, v: SoftmaxAttention(heads=groups * kv, kv_heads=kv, k_dim=k, v_dim=v),
    st.integers(1, 16),
    st.integers(1, 64),
    _sizes,
    _sizes,
)
_latent = st.builds(
    lambda kv, rope: LatentAttention(heads=16, q_rank=None, kv_rank=kv, nope_dim=128, rope_dim=rope, v_dim=128),
    st.integers(1, 2048),
    st.integers(1, 256),
)
_recurrent = st.builds(
    lambda heads, groups, rows: RecurrentState(
        kind="mamba2",
        heads=heads * groups,
        key_heads=groups,
        state_rows=rows,
        state_columns=128,
        conv_channels=heads * groups * rows + 2 * groups * 128,
        conv_width=4,
    ),
    st.integers(1, 32),
    st.integers(1, 16),
    _sizes,
)


@given(mixer=st.one_of(_softmax, _latent, _recurrent), kv_format=st.sampled_from([BF16, FP8, INT4_ROWS]))
def test_more_ranks_never_cost_a_rank_more(mixer: Mixer, kv_format: Format) -> None:
    tp = np.array([1, 2, 4, 8, 16, 32, 64])
    law = mixer.cache_law(tp=tp, kv_format=kv_format)
    for figure in (np.broadcast_to(law.bytes_per_token, tp.shape), np.broadcast_to(law.fixed_bytes, tp.shape)):
        assert (np.diff(figure) <= 0).all()
        assert (figure >= 0).all()


@given(mixer=st.one_of(_softmax, _latent, _recurrent), ranks=st.lists(st.integers(1, 128), min_size=1, max_size=6))
def test_a_table_is_its_rows(mixer: Mixer, ranks: list[int]) -> None:
    table = mixer.cache_law(tp=np.array(ranks), kv_format=BF16)
    for row, tp in enumerate(ranks):
        single = mixer.cache_law(tp=tp, kv_format=BF16)
        assert np.broadcast_to(table.bytes_per_token, len(ranks))[row] == single.bytes_per_token
        assert np.broadcast_to(table.fixed_bytes, len(ranks))[row] == single.fixed_bytes
