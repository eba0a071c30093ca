"""Kernels of a step: shapes of one rank, counts of a whole model, names that tables know."""

from __future__ import annotations

import pytest

from trilemma.formats import catalogue
from trilemma.formats.computing import kernel_name
from trilemma.hardware import find
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.timing.kernels import kernel_formats
from trilemma.timing.step_kernels import step_kernels

H200 = find("nvidia-h200-sxm")


def calls(name, *, tp=1, dp=1, ep=1, batch=64, context=4096, kv="bf16", card=H200):
    layout = Layout(tp=tp, pp=1, dp=dp, ep=ep)
    return step_kernels(load_model(name), card, layout, batch=batch, context=context, kv_format=catalogue.get(kv))


def by_what(found):
    return {call.what: call for call in found}


def test_products_of_a_dense_model_are_those_of_its_config():
    # Llama-3.1-70B: hidden 8192, 64 heads and 8 KV heads of 128, intermediate 28672, vocabulary 128256, 80 layers
    found = by_what(calls("llama-3.1-70b", tp=4))
    assert found["attention.q + attention.k + attention.v"].shapes == {"m": 64, "n": 10240 / 4, "k": 8192}
    assert found["attention.o"].shapes == {"m": 64, "n": 8192, "k": 2048}
    assert found["ffn.gate + ffn.up"].shapes == {"m": 64, "n": 2 * 28672 / 4, "k": 8192}
    assert found["ffn.down"].shapes == {"m": 64, "n": 8192, "k": 7168}
    assert found["head"].shapes["n"] == pytest.approx(128256 / 4)
    assert {found[what].count for what in ("attention.o", "ffn.down", "attention")} == {80}
    assert found["attention"].shapes["heads"] == 16
    assert found["attention"].shapes["kv_heads"] == 2
    joins = found["partial sums"]
    assert (joins.count, joins.shapes) == (160, {"n_bytes": 64 * 8192 * 2, "ranks": 4})


def test_weights_of_all_calls_are_the_weights_of_the_rank():
    model = load_model("llama-3.1-70b")
    whole = sum(t.elements for t in model.of_part("layers", "head") if len(t.shape) == 2)
    rank = sum(c.count * c.shapes["n"] * c.shapes["k"] for c in calls("llama-3.1-70b", tp=8) if c.kernel == "gemm")
    assert rank == pytest.approx(whole / 8, rel=1e-6)


def test_one_card_joins_nothing():
    assert all(call.kernel != "all_reduce" for call in calls("llama-3.1-8b"))


def test_replicas_of_attention_bring_their_tokens_to_the_experts():
    found = [call for call in calls("deepseek-r1", tp=1, dp=8, ep=8, kv="fp8_e4m3") if call.line == "experts"]
    (experts,) = found
    assert (experts.count, experts.dtype) == (58, "fp8_block")
    assert experts.shapes["tokens"] == 64 * 8
    assert (experts.shapes["tp"], experts.shapes["ep"]) == (1, 8)
    assert by_what(calls("deepseek-r1", tp=8))["latent attention"].shapes["heads"] == 16


def test_windows_and_sparse_attention_bound_what_is_read():
    windows = {call.windowed: call.shapes["window"] for call in calls("gpt-oss-120b") if call.line == "attention"}
    assert windows == {True: 128, False: 0}
    sparse = by_what(calls("deepseek-v3.2", tp=8, context=100_000))["latent attention"]
    assert sparse.shapes["context"] == 2048


@pytest.mark.parametrize(
    ("stored", "computed_in", "expected"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8_block", "fp8", "fp8_block"),
        ("fp8_tensor", "fp8", "fp8"),
        ("fp8_tensor", "bf16", "w8a16"),
        ("nvfp4", "nvfp4", "nvfp4"),
        ("nvfp4", "bf16", "w4a16"),
        ("mxfp4", "fp8", "mxfp4_a8"),
        ("mxfp4", "bf16", "mxfp4_a16"),
    ],
)
def test_formats_are_named_as_tables_name_them(stored, computed_in, expected):
    assert kernel_name(catalogue.get(stored), computed_in) == expected
    assert expected in kernel_formats()
