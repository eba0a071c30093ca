"""Decode and prefill: bounds by hand, lines that sum, arrays that equal scalars, and what must be monotone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from timing_cases import BF16, FP8, INT4, card, cluster, figure, llama_70b, mixture

from trilemma.models.attention import LatentAttention, RecurrentState, SoftmaxAttention
from trilemma.plans import Layout
from trilemma.timing import Machine, concurrency_for_rate, decode_step, model_work, prefill_pass, serving_speed
from trilemma.timing.admission import Admission
from trilemma.timing.attention import decode_work, prefill_work


def machine(accelerator=None, **kwargs):
    return Machine.of(cluster(accelerator or card(), **kwargs))


def perfect(accelerator=None, **kwargs):
    """A machine whose kernels reach the datasheet and cost nothing to launch."""
    plain = machine(accelerator, **kwargs)
    coefficients = replace(
        plain.coefficients.with_numbers(
            cache_stream=1.0, overlap_power=64.0,
            kernel_s=0.0, attention_kernel_s=0.0, experts_kernel_s=0.0, step_s=0.0, sequence_s=0.0,
        ),
        matmul={"bf16": 1.0, "fp8": 1.0}, stream={16: 1.0, 8: 1.0, 4: 1.0},
    )  # fmt: skip
    return replace(plain, coefficients=coefficients)


def test_llama_2_70b_decode_is_bound_by_its_weights():
    # 68.98e9 parameters less the input embedding, two bytes each, over 8 × 3.35 TB/s: 5.13 ms
    # (Pope et al. 2022, arXiv:2211.05102, section 2.1: batch 1 takes the time to load the weights)
    work = model_work(llama_70b(), card())
    step = decode_step(work, perfect(), Layout(tp=8), batch=1, context=1, kv_format=BF16)
    weights_s = (68.977e9 - 32000 * 8192) * 2 / 8 / 3.35e12
    own = step.lines["dense"] + step.lines["lm_head"]
    assert float(own) == pytest.approx(weights_s, rel=0.01)


def test_cache_of_llama_2_70b_is_read_once_a_step():
    # 327,680 bytes per token at 16 bits over 8 ranks
    step = decode_step(model_work(llama_70b(), card()), perfect(), Layout(tp=8), batch=64, context=4096, kv_format=BF16)
    assert float(step.lines["attention"]) == pytest.approx(64 * 4096 * 327_680 / 8 / 3.35e12, rel=1e-6)


def test_prefill_is_two_flops_per_weight_and_token():
    work = model_work(llama_70b(), card())
    prefill = prefill_pass(work, perfect(), Layout(tp=8), tokens=8192, cached=0, kv_format=BF16)
    weights = 68.977e9 - 2 * 32000 * 8192
    assert float(prefill.lines["dense"]) == pytest.approx(2 * weights * 8192 / 8 / 989.4e12, rel=0.01)


def test_kv_heads_are_never_split():
    mixer = SoftmaxAttention(heads=64, kv_heads=8, k_dim=128, v_dim=128)
    read = decode_work(mixer, context=1000, tp=np.array([1, 8, 16]), kv_format=BF16).bytes
    np.testing.assert_allclose(read, [8 * 256 * 2 * 1000, 256 * 2 * 1000, 256 * 2 * 1000])


def test_latent_cache_is_not_divided_by_tp_and_runs_absorbed_in_decode_only():
    # DeepSeek-V3: 128 heads, latent 512, rope 64, nope 128, values 128 (arXiv:2412.19437)
    mla = LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
    decode = decode_work(mla, context=4096, tp=np.array([1, 8]), kv_format=FP8)
    np.testing.assert_allclose(decode.bytes, [4096 * 576, 4096 * 576])
    np.testing.assert_allclose(decode.flops, [2 * 128 * 1088 * 4096, 2 * 16 * 1088 * 4096])
    prefill = prefill_work(mla, tokens=4096, cached=0, tp=1, kv_format=FP8)
    assert float(prefill.flops) == pytest.approx(2 * 128 * 320 * 4096**2 / 2)


def test_sparse_attention_reads_the_chosen_and_every_index_key():
    mla = LatentAttention(
        heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128, index_heads=64, index_dim=128, index_topk=2048,
    )  # fmt: skip
    decode = decode_work(mla, context=65536, tp=8, kv_format=BF16)
    assert float(decode.bytes) == pytest.approx(2048 * 576 * 2 + 65536 * 132)


def test_windows_bound_decode_and_prefill():
    full = SoftmaxAttention(heads=8, kv_heads=8, k_dim=64, v_dim=64)
    window = replace(full, window=128)
    assert (
        decode_work(window, context=4096, tp=1, kv_format=BF16).bytes
        == decode_work(full, context=128, tp=1, kv_format=BF16).bytes
    )
    pairs = float(prefill_work(window, tokens=4096, cached=0, tp=1, kv_format=BF16).flops) / (2 * 8 * 128)
    assert pairs == pytest.approx(sum(min(i + 0.5, 128) for i in range(4096)), rel=1e-3)
    # behind a cached prefix that fills the window each query sees the window
    late = float(prefill_work(window, tokens=100, cached=1000, tp=1, kv_format=BF16).flops) / (2 * 8 * 128)
    assert late == pytest.approx(100 * 128)


def test_recurrent_state_costs_the_same_at_any_length():
    state = RecurrentState(
        kind="gated_delta_net",
        heads=32,
        key_heads=16,
        state_rows=128,
        state_columns=128,
        conv_channels=8192,
        conv_width=4,
    )
    reads = decode_work(state, context=np.array([1, 10**6]), tp=1, kv_format=BF16).bytes
    np.testing.assert_allclose(reads, 2 * (32 * 128 * 128 * 4 + 8192 * 3 * 2))  # FP32 state, BF16 convolution tail


def test_experts_awake():
    expert = model_work(mixture(), card()).experts[0]
    assert float(expert.active(1)) == pytest.approx(2.0)
    assert float(expert.active(4)) == pytest.approx(8 * (1 - 0.75**4))
    assert float(expert.active(10_000)) == pytest.approx(8.0)


def test_mixtral_active_parameters():
    # 12.9 B active of 46.7 B (arXiv:2401.04088); the input embedding multiplies nothing
    work = model_work(mixture(), card())
    assert work.flops_per_token() / 2 == pytest.approx(12.88e9 - 32000 * 4096, rel=0.005)


def table():
    tp, pp, batch = (grid.ravel() for grid in np.meshgrid([1, 2, 4, 8], [1, 2, 5], [1, 3, 17, 128, 1024]))
    return Layout(tp=tp, pp=pp, dp=np.where(tp < 8, 2, 1), ep=np.where(tp == 4, 8, 1)), batch


@pytest.mark.parametrize("model", [llama_70b(), llama_70b(INT4), mixture()], ids=["dense", "int4", "experts"])
def test_a_table_is_its_rows(model):
    layout, batch = table()
    machine_ = machine(gpus=128)
    work = model_work(model, card())
    kwargs = {"isl": 1000, "osl": 200, "kv_format": BF16}
    slots = batch * 0.7 + 1
    whole = serving_speed(work, machine_, layout, concurrency=batch, admission=Admission.of(slots), **kwargs)
    for at in range(0, batch.size, 7):
        one = Layout(tp=int(layout.tp[at]), pp=int(layout.pp[at]), dp=int(layout.dp[at]), ep=int(layout.ep[at]))
        alone = serving_speed(
            work, machine_, one, concurrency=int(batch[at]), admission=Admission.of(slots[at]), **kwargs
        )
        for name in ("ttft_s", "tpot_s", "step_s", "tokens_per_s_per_gpu", "mfu", "running"):
            assert float(getattr(whole, name)[at]) == pytest.approx(float(getattr(alone, name)), rel=1e-12), name
        assert str(whole.bottleneck()[at]) == str(alone.bottleneck())


@pytest.mark.parametrize("model", [llama_70b(), mixture()], ids=["dense", "experts"])
def test_lines_and_resources_sum_to_the_total(model):
    layout, batch = table()
    speed = serving_speed(
        model_work(model, card()), machine(), layout, concurrency=batch, isl=4096, osl=512, kv_format=BF16
    )
    np.testing.assert_allclose(sum(speed.lines.values()), speed.tpot_s, rtol=1e-12)
    np.testing.assert_allclose(sum(speed.resources.values()), speed.tpot_s, rtol=1e-12)


@pytest.mark.parametrize("model", [llama_70b(), mixture()], ids=["dense", "experts"])
@pytest.mark.parametrize("better", [{"bandwidth": 6e12}, {"bf16": 2e15}, {"link": 1800e9}], ids=str)
def test_better_hardware_lengthens_no_line(model, better):
    layout, batch = table()
    load = {"isl": 2048, "osl": 256, "kv_format": BF16}
    plain, faster = (
        serving_speed(model_work(model, one), Machine.of(cluster(one, gpus=128)), layout, concurrency=batch, **load)
        for one in (card(), card(**better))
    )
    for name, seconds in plain.lines.items():
        assert np.all(faster.lines[name] <= seconds * (1 + 1e-12)), name
    assert np.all(faster.ttft_s <= plain.ttft_s * (1 + 1e-12))


def test_a_better_network_lengthens_no_line():
    layout = Layout(tp=np.array([16, 8, 32]), pp=np.array([1, 4, 1]))
    work = model_work(llama_70b(), card())
    slow, fast = (
        decode_step(work, machine(gpus=32, network=rate), layout, batch=64, context=1000, kv_format=BF16)
        for rate in (12e9, 100e9)
    )
    for name in slow.lines:
        assert np.all(fast.lines[name] <= slow.lines[name])


def test_dense_throughput_rises_with_requests_until_the_cache_is_full():
    concurrency = np.arange(1, 400)
    work = model_work(llama_70b(), card())
    speed = serving_speed(
        work,
        machine(),
        Layout(tp=8),
        concurrency=concurrency,
        admission=Admission.of(200),
        isl=128,
        osl=1024,
        kv_format=BF16,
    )
    assert np.all(np.diff(speed.output_tokens_per_s[:201]) > 0)  # where requests wait, a free slot is filled at once
    # the turn of those that wait never stands between two who run, so a little is gained yet, and nothing lost
    full = speed.output_tokens_per_s[199:]
    assert np.all(np.diff(full) >= -1e-9)
    assert full[-1] < full[0] * 1.01
    assert set(speed.bottleneck()[200:]) == {"capacity"}
    assert np.all(np.diff(speed.ttft_s) >= -1e-12)


@pytest.mark.parametrize("osl", [2, 16, 1024])
def test_requests_in_flight_are_their_rate_times_their_time_whether_they_wait_or_not(osl):
    """Little's law, to the last digit, across the load from which slots are short; nor does the rate fall there, which it did
    by 4 % where prefills fill the turn."""
    loads = np.unique(np.geomspace(1, 2000, 200).round())
    speed = serving_speed(
        model_work(llama_70b(), card()), machine(), Layout(tp=8), concurrency=loads, admission=Admission.of(200), isl=128,
        osl=osl, kv_format=BF16,
    )  # fmt: skip
    np.testing.assert_allclose(speed.output_tokens_per_s / osl * speed.request_s, loads)
    assert np.all(np.diff(speed.output_tokens_per_s) >= -1e-9 * speed.output_tokens_per_s[:-1])


def test_narrower_weights_decode_faster_and_widened_ones_prefill_no_faster():
    wide, narrow = model_work(llama_70b(), card()), model_work(llama_70b(INT4), card())
    assert "int4_g128 weights compute in bf16" in narrow.computed_in
    assert float(decode_step(narrow, machine(), Layout(tp=8), batch=1, context=100, kv_format=BF16).total_s) < float(
        decode_step(wide, machine(), Layout(tp=8), batch=1, context=100, kv_format=BF16).total_s
    )
    assert float(
        prefill_pass(narrow, perfect(), Layout(tp=8), tokens=8192, cached=0, kv_format=BF16).lines["dense"]
    ) == pytest.approx(
        float(prefill_pass(wide, perfect(), Layout(tp=8), tokens=8192, cached=0, kv_format=BF16).lines["dense"]),
        rel=1e-3,
    )


def test_fp8_prefills_twice_as_fast_where_there_are_units():
    wide, narrow = model_work(llama_70b(), card()), model_work(llama_70b(FP8), card())
    seconds = [
        float(prefill_pass(work, perfect(), Layout(tp=8), tokens=8192, cached=0, kv_format=BF16).lines["dense"])
        for work in (wide, narrow)
    ]
    assert seconds[0] / seconds[1] == pytest.approx(2.0, rel=0.01)
    ampere = replace(card(), hardware_formats=("bf16",), peak_flops={"bf16": figure(989.4e12)})
    widened = prefill_pass(
        model_work(llama_70b(FP8), ampere), perfect(ampere), Layout(tp=8), tokens=8192, cached=0, kv_format=BF16
    )
    assert float(widened.lines["dense"]) == pytest.approx(seconds[0], rel=0.01)


def test_prefix_hits_shorten_the_prompt():
    work = model_work(llama_70b(), card())
    cold, warm = (
        serving_speed(work, machine(), Layout(tp=8), concurrency=16, isl=8192, osl=256, kv_format=BF16, prefix_hit=hit)
        for hit in (0.0, 0.9)
    )
    assert float(warm.prefill_s) < 0.25 * float(cold.prefill_s)
    assert float(warm.step_s) == float(cold.step_s)


def test_a_rate_becomes_requests_in_flight():
    work, load = model_work(llama_70b(), card()), {"isl": 1024, "osl": 256, "kv_format": BF16}
    needed = concurrency_for_rate(work, machine(), Layout(tp=np.array([4, 8])), rate=2.0, **load)
    for at, tp in enumerate((4, 8)):
        carried = [
            float(serving_speed(work, machine(), Layout(tp=tp), concurrency=many, rate=2.0, **load).output_tokens_per_s)
            / 256
            for many in (needed[at] - 1, needed[at])
        ]
        assert carried[0] < 2.0 == carried[1]
    for near in (needed, needed + 7, needed * 0 + 1.0, needed * 100):  # a guess changes how it is found, not what
        again = concurrency_for_rate(work, machine(), Layout(tp=np.array([4, 8])), rate=2.0, near=near, **load)
        np.testing.assert_array_equal(again, needed)
