"""Requests that share an engine, drafts, and what must be monotone under the terms of an engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from timing_cases import BF16, FP8, INT4, cluster, llama_70b, mixture

import trilemma as tl
from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.plans import Layout
from trilemma.timing import Machine, model_work, serving_speed
from trilemma.timing.admission import Admission
from trilemma.timing.queueing import (
    arrivals_ahead_percentiles_s,
    arrivals_ahead_s,
    percentiles_s,
    token_gap_percentiles_s,
    waiting_s,
)
from trilemma.timing.serving_terms import precision_of
from trilemma.timing.speculation import Speculation

LOAD = {"isl": 2048, "osl": 512, "kv_format": BF16}


def machine(model, accelerator=None, **kwargs):
    accelerator = accelerator or find("h200-sxm")
    return Machine.serving(cluster(accelerator, gpus=8, **kwargs), work=model_work(model, accelerator), engine="vllm")


def speed(model, *, batch, accelerator=None, layout=None, **more):
    accelerator = accelerator or find("h200-sxm")
    work = model_work(model, accelerator)
    return serving_speed(work, machine(model, accelerator), layout or Layout(tp=8), concurrency=batch, **LOAD, **more)


def test_littles_law_by_hand():
    # 100 in flight, 40 slots, a slot is free again after 8 s: 60 wait, 5 leave a second
    assert waiting_s(100, 40, 8.0) == pytest.approx(12.0)
    assert waiting_s(30, 40, 8.0) == 0.0


def test_percentiles_of_a_wait():
    half, worst = percentiles_s(1.0, 2.0)
    assert half == pytest.approx(1 + 2 * 0.6931, abs=1e-3)
    assert worst == pytest.approx(1 + 2 * 4.6052, abs=1e-3)


def test_gap_between_tokens_has_a_prefill_where_steps_often_have():
    half, worst = token_gap_percentiles_s(0.02, 0.1, np.array([0.0, 0.05, 0.8]))
    np.testing.assert_allclose(half, [0.02, 0.02, 0.12])
    np.testing.assert_allclose(worst, [0.02, 0.12, 0.12])


def test_latencies_are_ordered_and_add_up():
    found = speed(llama_70b(FP8), batch=np.array([1, 8, 64, 256]), admission=Admission.of(100))
    for middle, worst in (("ttft_p50_s", "ttft_p99_s"), ("gap_p50_s", "gap_p99_s"), ("request_p50_s", "request_p99_s")):
        assert np.all(getattr(found, middle) <= getattr(found, worst))
    np.testing.assert_allclose(found.request_s, found.ttft_s + 511 * found.tpot_s)
    np.testing.assert_allclose(sum(found.lines.values()), found.tpot_s)
    np.testing.assert_allclose(sum(found.resources.values()), found.tpot_s)


def test_tokens_of_a_speculative_step():
    # engines print accepted over drafted: 1,845 of 2,558 drafts of two a step are 1 + 2 x 0.7213 tokens (vLLM counters of
    # sudoingX/qwen38-mtp); mean acceptance length of vllm/v1/spec_decode/metrics.py
    assert Speculation(drafted=2, acceptance=1845 / 2558).tokens_per_step == pytest.approx(1 + 1845 / (2558 / 2))
    assert Speculation(drafted=3, acceptance=0.8).tokens_per_step == pytest.approx(3.4)
    assert Speculation(drafted=3, acceptance=1.0).tokens_per_step == 4
    assert Speculation().tokens_per_step == 1
    with pytest.raises(InputError, match="acceptance"):
        Speculation(drafted=1, acceptance=1.2)


def test_accepted_drafts_speed_small_batches_and_rejected_ones_cost():
    plain = float(speed(llama_70b(FP8), batch=4).tpot_s)
    good = float(speed(llama_70b(FP8), batch=4, speculation=Speculation(drafted=2, acceptance=0.8)).tpot_s)
    bad = float(speed(llama_70b(FP8), batch=4, speculation=Speculation(drafted=2, acceptance=0.0)).tpot_s)
    assert good < 0.6 * plain
    assert bad > plain


@pytest.mark.parametrize("model", [llama_70b(FP8), mixture()], ids=["dense", "mixture"])
@pytest.mark.parametrize("better", ["bandwidth", "peak", "link"])
def test_better_hardware_lengthens_no_line_under_the_terms_of_an_engine(model, better):
    plain = find("h200-sxm")
    double = {
        "bandwidth": {
            "bandwidth_bytes_per_s": replace(plain.bandwidth_bytes_per_s, value=2 * plain.bandwidth_bytes_per_s.value)
        },
        "peak": {"peak_flops": {name: replace(one, value=2 * one.value) for name, one in plain.peak_flops.items()}},
        "link": {"link": replace(plain.link, bytes_per_s=replace(plain.link.bytes_per_s, value=1.8e12))},
    }[better]
    batch = np.array([1, 4, 16, 64, 256, 1024])
    before, after = (speed(model, batch=batch, accelerator=one) for one in (plain, replace(plain, **double)))
    for name, seconds in before.lines.items():
        assert name == "host" or np.all(after.lines[name] <= seconds * (1 + 1e-12)), (
            name
        )  # faster cards hide less of it
    assert np.all(after.tpot_s <= before.tpot_s * (1 + 1e-12))
    assert np.all(after.ttft_s <= before.ttft_s)


def test_fewer_bits_move_fewer_bytes_though_the_whole_may_take_longer():
    same = machine(llama_70b(FP8))  # the terms of one deployment, so that only bytes and units differ
    layout, batch = Layout(tp=8), np.array([1, 256])
    speeds = {}
    for name, stored in (("fp8", FP8), ("int4", INT4)):
        work = model_work(llama_70b(stored), find("h200-sxm"))
        speeds[name] = serving_speed(work, same, layout, concurrency=batch, **LOAD)
    # one sequence: weights bind and 4 bits win; 256: W4A16 multiplies in BF16 at half the rate of FP8 and loses
    assert speeds["int4"].lines["dense"][0] < speeds["fp8"].lines["dense"][0]
    assert speeds["int4"].tpot_s[1] > speeds["fp8"].tpot_s[1]
    assert {precision_of(model_work(llama_70b(one), find("h200-sxm"))) for one in (FP8, INT4)} == {
        "8-bit fp8", "4-bit bf16",
    }  # fmt: skip


def test_throughput_rises_with_doubled_batches_until_the_cache_is_full():
    batch = 2 ** np.arange(9)
    found = speed(llama_70b(FP8), batch=batch, admission=Admission.of(128))
    assert np.all(np.diff(found.output_tokens_per_s[:8]) > 0)
    assert found.output_tokens_per_s[8] >= found.output_tokens_per_s[7]


def test_a_table_equals_its_plans_one_by_one():
    tp, batch = np.array([1, 2, 4, 8, 8]), np.array([4, 16, 64, 3, 300])
    draft = Speculation(drafted=1, acceptance=0.6)
    whole = speed(
        mixture(),
        batch=batch,
        layout=Layout(tp=tp),
        admission=Admission.of(np.array([8, 8, 80, 8, 200])),
        speculation=draft,
    )
    for at in range(len(tp)):
        one = speed(
            mixture(),
            batch=int(batch[at]),
            layout=Layout(tp=int(tp[at])),
            admission=Admission.of([8, 8, 80, 8, 200][at]),
            speculation=draft,
        )
        for name in ("ttft_s", "tpot_s", "gap_p99_s", "request_p99_s", "output_tokens_per_s", "mfu"):
            assert float(getattr(one, name)) == pytest.approx(float(getattr(whole, name)[at]), rel=1e-12), name


def test_drafts_as_written_on_the_command_line():
    from trilemma.ask.nouns import draft_of as read_draft

    assert (read_draft("mtp").tokens, read_draft("mtp").acceptance) == (1, None)
    assert (read_draft("mtp:3:0.8").tokens, read_draft("mtp:3:0.8").acceptance) == (3, 0.8)
    for wrong in ("mtp:3:x", "mtp:3:1.5", "mtp:x"):
        with pytest.raises(InputError, match="draft"):
            read_draft(wrong)


def test_prompts_that_arrive_wait_as_m_d_1_and_their_turn_is_longer():
    # Pollaczek and Khinchine: half of busy / (1 - busy) service times: 0.5 / s of 1 s each is 0.5 s; steps of 0.1 s once more
    assert arrivals_ahead_s(0.5, each_s=1.0, step_s=0.0) == pytest.approx(0.5)
    assert arrivals_ahead_s(0.5, each_s=1.0, step_s=0.1) == pytest.approx(0.6)
    assert arrivals_ahead_s(0.0, each_s=1.0, step_s=0.1) == 0
    assert np.isfinite(arrivals_ahead_s(5.0, each_s=1.0, step_s=0.1))
    p50, p99 = arrivals_ahead_percentiles_s(0.5, each_s=1.0, step_s=0.0)
    assert (p50, p99) == (0.0, pytest.approx(np.log(50.0)))  # half of them find nobody there


@pytest.mark.parametrize(("share", "bar"), [(0.2, 0.1), (0.5, 0.15)])
def test_first_tokens_at_a_rate_are_those_of_the_simulation(share, bar):
    # 17.9 requests a second of 1024/256 saturate this plan (simulated); a closed loop would wait for all that begin at once
    rate = 17.9 * share
    said = tl.fit("llama-3.1-8b", "h100-sxm", isl=1024, osl=256, rate=rate).to_dict()["speed"]["ttft_ms"]
    seen = tl.simulate(
        "llama-3.1-8b", "h100-sxm", arrivals=f"poisson:{rate}", isl=1024, osl=256, requests=1500, bounds=False
    ).to_dict()["metrics"]["ttft_ms"]  # fmt: skip
    assert said["p50"] == pytest.approx(seen["p50"], rel=bar)
    assert said["p99"] == pytest.approx(seen["p99"], rel=0.25)
    assert said["value"] == pytest.approx(seen["mean"], rel=bar)
