"""Kernels that a pass launches (sparse indexers, shared experts, quantised activations), and weights expanded in the product."""

from __future__ import annotations

from dataclasses import replace

import pytest
from timing_cases import BF16, cluster

from trilemma.hardware.catalogue import find
from trilemma.models.quantized import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import Layout
from trilemma.timing import Machine, decode_step, model_work, prefill_pass
from trilemma.timing.collectives import all_reduce_s


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


def test_blocks_that_every_token_takes_launch_beside_the_experts():
    h200 = find("h200-sxm")
    # DeepSeek-V3: nine a latent mixer, four a dense feed-forward, five a mixture; gate and up, activation, down and sum of the
    # shared block, whose last product reads FP8 as well (vllm deepseek_v2.py, DeepseekV2MoE)
    deepseek = model_work(load_model("deepseek-v3"), h200)
    assert deepseek.kernels == 61 * 9 + 3 * 4 + 58 * (5 + 4 + 1) + 61 * 4
    # Qwen3.5: its shared expert has a gate of its own, a product and what multiplies by it (vllm qwen2_moe.py)
    qwen = model_work(load_model("qwen3.5-397b-a17b"), h200)
    assert qwen.kernels == 45 * 7 + 15 * 4 + 60 * (5 + 4 + 2)


def test_norms_over_all_heads_join_their_sums_of_squares():
    # vllm minimax_m2.py: one all-reduce of eight bytes a token in each of 62 layers, where heads are shared out
    b200 = find("b200-sxm-180gb")
    work, machine = model_work(load_model("minimax-m2.5"), b200), Machine.of(cluster(b200), "vllm")
    assert work.norms_over_heads == 62
    joined, apart = (
        {tp: float(decode_step(one, machine, Layout(tp=tp), batch=8, context=1024, kv_format=BF16).lines["all_reduce"])
         for tp in (1, 4)}
        for one in (work, replace(work, norms_over_heads=0))
    )  # fmt: skip
    assert joined[1] == apart[1] == 0.0
    assert joined[4] - apart[4] == pytest.approx(62 * float(all_reduce_s(8 * 8, 4, machine.wires)))
    # Qwen3 normalises each head by itself: nothing to join
    assert model_work(load_model("qwen3-32b"), b200).norms_over_heads == 0


def test_fp8_experts_on_cdna3_take_many_launches_under_sglang():
    """MiniMax-M2 on four MI300X, one reader, SGLang 0.5.7: 22.21 ms a token (sgl-project/sgl-cookbook@7b5bd9c0)."""
    mi300x = find("mi300x")
    took = {}
    for engine in ("sglang", "vllm"):
        machine = Machine.of(cluster(mi300x), engine)
        for precision in ("fp8", "bf16"):
            model = load_model("minimax-m2")
            work = model_work(model if precision == "fp8" else requantize(model, "bf16"), mi300x)
            step = decode_step(work, machine, Layout(tp=4), batch=1, context=800, kv_format=BF16)
            took[engine, precision] = float(step.total_s)
    assert took["sglang", "fp8"] == pytest.approx(22.2e-3, rel=0.2)
    assert took["sglang", "fp8"] > 1.8 * took["vllm", "fp8"]
    assert took["sglang", "bf16"] == took["vllm", "bf16"]


def test_a_group_of_experts_starts_later_the_more_are_woken():
    b200 = find("b200-sxm-180gb")
    work, machine = model_work(load_model("gpt-oss-120b"), b200), Machine.of(cluster(b200), "vllm")
    alone, many = (
        float(decode_step(work, machine, Layout(tp=8), batch=n, context=1024, kv_format=BF16).lines["kernels"])
        for n in (1, 512)
    )
    each = machine.coefficients.experts_kernel_s * machine.coefficients.experts_kernel_of_each
    # one token wakes 4 of 128 experts in each of 36 layers, 512 wake all; a rank of eight that holds whole experts an eighth
    assert many - alone == pytest.approx(36 * (128 - 4) * each, rel=1e-3)
    spread = decode_step(work, machine, Layout(tp=8, ep=8), batch=512, context=1024, kv_format=BF16).lines["kernels"]
    assert many - float(spread) == pytest.approx(36 * (128 - 16) * each, rel=1e-3)


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
