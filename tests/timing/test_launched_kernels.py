"""Kernels that a pass launches (of sparse indexers, those that quantise activations), and weights expanded in the product."""

from __future__ import annotations

import pytest
from timing_cases import BF16, cluster

from trilemma.hardware.catalogue import find
from trilemma.models.quantized import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.timing import Machine, decode_step, model_work, prefill_pass


def test_a_sparse_indexer_launches_ten_kernels_and_two_of_attention_a_layer():
    # vllm deepseek_v2.py, class Indexer: projections, norm, rotations, quantisation, cache write; logits, top-k
    with_index, without = (
        model_work(load_model(name), find("b200-sxm-180gb")) for name in ("deepseek-v3.2", "deepseek-v3")
    )
    layers = without.mixer_layers
    assert layers == with_index.mixer_layers == 61
    assert with_index.kernels - without.kernels == 10 * layers
    assert with_index.attention_kernels - without.attention_kernels == 2 * layers


def test_activations_are_quantised_twice_a_mixer_and_twice_a_feed_forward():
    model, h200 = load_model("llama-3.1-70b"), find("h200-sxm")
    plain, fp8 = model_work(model, h200), model_work(requantize(model, "fp8"), h200)
    assert fp8.kernels - plain.kernels == 4 * 80
    # Ampere has no FP8 units: weights are expanded, activations stay as they are
    assert model_work(requantize(model, "fp8"), find("a100-sxm4-80gb")).kernels == plain.kernels
    # of gpt-oss the experts alone are stored in four bits
    experts = model_work(load_model("gpt-oss-120b"), find("b200-sxm-180gb"))
    hopper = model_work(load_model("gpt-oss-120b"), h200)
    assert experts.kernels - hopper.kernels == 2 * 36


@pytest.mark.parametrize(("scheme", "slower"), [("int4", True), ("fp8", False), ("nvfp4", False)])
def test_weights_expanded_in_the_product_reach_less_on_data_centre_blackwell(scheme: str, slower: bool):
    model = requantize(load_model("llama-3.1-70b"), scheme)
    b200 = find("b200-sxm-180gb")
    work, machine = model_work(model, b200), Machine.of(cluster(b200))
    whole = machine.coefficients.with_numbers(expanded_matmul=1.0, expanded_stream=1.0)
    for run in (
        lambda m: decode_step(work, m, Layout(tp=8), batch=8, context=1024, kv_format=BF16),
        lambda m: prefill_pass(work, m, Layout(tp=8), tokens=8192, cached=0, kv_format=BF16),
    ):
        ratio = float(run(machine).lines["dense"] / run(machine.with_coefficients(whole)).lines["dense"])
        assert (ratio > 1.5) == slower, ratio
        assert slower or ratio == 1.0


def test_geforce_and_workstation_cards_of_one_chip_reach_like_shares_under_fp16_sums():
    """The RTX 4090's peak with FP32 sums is half of the RTX 6000 Ada's; with FP16 sums, as llama.cpp multiplies, it is not."""
    model = load_model("llama-3.1-8b")
    seconds = {}
    for name in ("rtx-4090", "rtx-6000-ada"):
        card = find(name)
        machine = Machine.of(cluster(card, gpus=1), "llama.cpp")
        passed = prefill_pass(model_work(model, card), machine, Layout(), tokens=4096, cached=0, kv_format=BF16)
        seconds[name] = float(passed.lines["dense"])
    assert seconds["rtx-4090"] / seconds["rtx-6000-ada"] == pytest.approx(728.5 / 660.6, rel=0.1)
