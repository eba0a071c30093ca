"""Prefill and decode in pools of their own: the queue before prefill, the hand-over, and Little's law over both."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from timing_cases import BF16, FP8, cluster, llama_70b, mixture

from trilemma.hardware.accelerator import Figure
from trilemma.hardware.catalogue import find
from trilemma.plans import Layout
from trilemma.timing import Machine, model_work
from trilemma.timing.disaggregation import prompt_cache_bytes, transfer_s
from trilemma.timing.pools import MOST_REQUESTS, Pools, where_one
from trilemma.timing.queueing import shared_queue_wait_s
from trilemma.timing.speculation import Speculation

ROOT = Path(__file__).parents[2]


def pools(model=None, accelerator=None, *, prefill=None, decode=None, workers=(2, 1), gpus=16, **more):
    model, accelerator = model or llama_70b(FP8), accelerator or find("h200-sxm")
    work = model_work(model, accelerator)
    machine = Machine.serving(cluster(accelerator, gpus=gpus), work=work, engine="vllm")
    load = {"isl": 4096, "osl": 512, "kv_format": BF16, "slots": 200} | more
    return Pools(
        work=work, machine=machine, prefill=prefill or Layout(tp=2), decode=decode or Layout(tp=4),
        prefill_workers=workers[0], decode_workers=workers[1], **load,
    )  # fmt: skip


def test_one_worker_waits_as_m_d_1():
    # Pollaczek and Khinchine: half of busy / (1 - busy) service times; 4 s of service at 75 % make 6 s
    assert shared_queue_wait_s(0.75, 1, 4.0) == pytest.approx(6.0)
    assert shared_queue_wait_s(0.0, 1, 4.0) == 0.0
    assert shared_queue_wait_s(1.0, 3, 4.0) == np.inf


def test_a_queue_before_several_workers_is_shorter_and_grows_with_how_busy_they_are():
    waits = shared_queue_wait_s(np.array([0.2, 0.5, 0.8, 0.95, 0.999]), 4, 1.0)
    assert np.all(np.diff(waits) > 0)
    assert np.all(waits < shared_queue_wait_s(np.array([0.2, 0.5, 0.8, 0.95, 0.999]), 1, 1.0))
    # M/D/2 at 80 %: half of Erlang's 16/9 service times, and 1.4 % more by the correction of Cosmetatos (1975)
    assert shared_queue_wait_s(0.8, 2, 1.0) == pytest.approx(8 / 9 * 1.0136, rel=0.03)


def test_the_cache_of_a_prompt_by_hand():
    # Llama 70B: 80 layers, 8 KV heads of 128, K and V, two bytes: 327,680 bytes a token over all ranks
    work = model_work(llama_70b(BF16), find("h200-sxm"))
    for layout, ranks in ((Layout(tp=4), 4), (Layout(tp=2, pp=2), 4), (Layout(tp=8), 8)):
        assert prompt_cache_bytes(work, layout, tokens=1000, kv_format=BF16) == pytest.approx(327_680 * 1000 / ranks)
    # sixteen ranks share eight heads: each of two holds a copy
    assert prompt_cache_bytes(work, Layout(tp=16), tokens=1000, kv_format=BF16) == pytest.approx(327_680 * 1000 / 8)


def test_the_slower_end_sets_the_pace_of_the_hand_over():
    one = pools()
    over = {"machine": one.machine, "gpus": 8}
    bytes_per_s = one.machine.wires.local_bytes_per_s
    latency_s = one.machine.wires.local_latency_s
    # four ranks send what four receive; one rank sends all of it; eight senders do not make receivers quicker
    assert transfer_s(4, 4, 1e9, **over) == pytest.approx(latency_s + 1e9 / bytes_per_s)
    assert transfer_s(1, 4, 1e9, **over) == pytest.approx(latency_s + 4e9 / bytes_per_s)
    assert transfer_s(8, 4, 1e9, **over) == pytest.approx(latency_s + 1e9 / bytes_per_s)
    assert transfer_s(4, 4, 1e9, machine=one.machine, gpus=16) > 5 * transfer_s(4, 4, 1e9, **over)


@pytest.mark.parametrize("model", [llama_70b(FP8), mixture()], ids=["dense", "mixture"])
@pytest.mark.parametrize("concurrency", [1, 3, 40, 150])
def test_littles_law_closes_the_loop(model, concurrency):
    found = pools(model).speed(concurrency=concurrency)
    speed, flow = found.serving, found.flow
    assert flow.in_flight == pytest.approx(concurrency, rel=1e-9)
    assert flow.rate * speed.request_s == pytest.approx(concurrency, rel=1e-9)
    assert speed.output_tokens_per_s == pytest.approx(flow.rate * 512)
    assert sum(speed.lines.values()) == pytest.approx(speed.tpot_s)
    assert sum(speed.resources.values()) == pytest.approx(speed.tpot_s)
    assert sum(speed.first_lines.values()) == pytest.approx(speed.ttft_s)
    assert speed.gap_p99_s == speed.tpot_s


def test_requests_that_no_slot_holds_wait():
    found = pools(slots=40, workers=(6, 1)).speed(concurrency=400)
    assert found.serving.capacity_limited
    assert found.flow.slots_used == pytest.approx(1.0, rel=0.01)
    assert found.flow.rate * found.serving.request_s == pytest.approx(400, rel=1e-9)


def test_both_pools_answer_at_least_the_rate_that_they_carry():
    one = pools(workers=(3, 2))
    rate = 4.0
    found = one.speed(rate=rate)
    prefill, decode = one.prefill_worker(), one.decode_worker(float(one.slots))
    assert found.carried
    assert 3 * prefill.servers / prefill.each_s >= rate
    assert 2 * decode.rate >= rate
    assert found.flow.prefill_busy < 1
    assert found.serving.output_tokens_per_s == pytest.approx(rate * 512)
    assert found.requests == pytest.approx(rate * found.serving.request_s)


def test_a_rate_that_is_too_much_is_told_and_priced_with_a_queue():
    found = pools(workers=(1, 1)).speed(rate=1000.0)
    assert not found.carried
    assert found.requests == MOST_REQUESTS
    assert found.flow.rate < 1000
    assert found.serving.ttft_s > 60


def test_prefill_that_cannot_keep_up_limits_the_whole():
    one = pools(workers=(1, 3), slots=1000)
    found = one.speed(concurrency=900)
    prefill = one.prefill_worker()
    assert found.flow.rate == pytest.approx(prefill.servers / prefill.each_s, rel=0.02)
    assert found.flow.prefill_busy > 0.98


def test_a_table_is_its_rows():
    tp, other = np.array([1, 2, 4, 8]), np.array([8, 4, 2, 1])
    counts = np.array([5, 3, 1, 2]), np.array([1, 2, 4, 3])
    table = pools(prefill=Layout(tp=tp), decode=Layout(tp=other), workers=counts).speed(
        concurrency=np.array([7, 50, 90, 30])
    )
    for row, load in enumerate((7, 50, 90, 30)):
        alone = pools(
            prefill=Layout(tp=int(tp[row])), decode=Layout(tp=int(other[row])),
            workers=(int(counts[0][row]), int(counts[1][row])),
        ).speed(concurrency=load)  # fmt: skip
        for name in ("ttft_s", "tpot_s", "output_tokens_per_s", "mfu", "ttft_p99_s"):
            assert getattr(table.serving, name)[row] == pytest.approx(float(getattr(alone.serving, name)), rel=1e-9)


@pytest.mark.parametrize("model", [llama_70b(FP8), mixture()], ids=["dense", "mixture"])
@pytest.mark.parametrize("better", ["bandwidth", "peak", "link", "network"])
def test_better_hardware_lengthens_nothing_at_a_rate(model, better):
    plain = find("h200-sxm")
    faster = {
        "bandwidth": replace(
            plain, bandwidth_bytes_per_s=Figure(value=2 * plain.bandwidth_bytes_per_s.value, source="")
        ),
        "peak": replace(
            plain, peak_flops={k: Figure(value=2 * v.value, source="") for k, v in plain.peak_flops.items()}
        ),
        "link": replace(plain, link=replace(plain.link, bytes_per_s=Figure(value=9e11, source=""))),
        "network": replace(plain, node_bytes_per_s=Figure(value=2e11, source="")),
    }[better]
    before, after = (pools(model, card, workers=(4, 2)).speed(rate=2.0).serving for card in (plain, faster))
    for name in ("ttft_s", "tpot_s", "request_s", "ttft_p99_s"):
        assert getattr(after, name) <= getattr(before, name) * (1 + 1e-9)
    for name, seconds in after.first_lines.items():
        assert seconds <= before.first_lines[name] * (1 + 1e-9)


def test_more_workers_lengthen_nothing_at_a_rate():
    few, prefills, decodes = (pools(workers=counts).speed(rate=3.0).serving for counts in ((2, 2), (3, 2), (2, 3)))
    assert prefills.ttft_s < few.ttft_s
    assert prefills.tpot_s == pytest.approx(float(few.tpot_s))
    assert decodes.tpot_s < few.tpot_s


def test_prefix_hits_spare_prefill_and_not_the_hand_over():
    cold, warm = pools().speed(rate=1.0), pools(prefix_hit=0.9).speed(rate=1.0)
    assert warm.serving.first_lines["prefill"] < 0.5 * cold.serving.first_lines["prefill"]
    assert warm.flow.transfer_s == pytest.approx(float(cold.flow.transfer_s))


def test_accepted_drafts_speed_decode_alone():
    plain = pools().speed(rate=1.0).serving
    drafted = pools(speculation=Speculation(drafted=2, acceptance=0.8)).speed(rate=1.0).serving
    assert drafted.tpot_s < 0.7 * plain.tpot_s
    assert drafted.first_lines["prefill"] == plain.first_lines["prefill"]
    assert drafted.lines["draft"] > 0


def test_a_root_is_found_on_either_side_of_a_jump_and_at_the_end():
    loads = np.array([0.5, 3.0, 77.0, 1e6])
    found = where_one(lambda batch: batch / loads, least=np.full(4, 1e-6), most=np.full(4, 100.0))
    np.testing.assert_allclose(found, [0.5, 3.0, 77.0, 100.0], rtol=1e-9)
    jump = where_one(lambda batch: np.where(batch < 8, 0.5, np.inf), least=np.array(1e-6), most=np.array(100.0))
    assert jump == pytest.approx(8.0)


def test_a_smooth_root_takes_few_looks():
    looks = []

    def load(batch):
        looks.append(batch)
        return batch**0.7 / 40.0

    found = where_one(load, least=np.array(2.0**-24), most=np.array(16384.0))
    assert found == pytest.approx(40.0 ** (1 / 0.7))
    assert len(looks) <= 8


def test_measured_runs_of_pools_apart():
    # every fifth of 134 public runs; nothing was fitted to any of them
    spec = importlib.util.spec_from_file_location(
        "disaggregated_serving", ROOT / "studies" / "disaggregated_serving.py"
    )
    assert spec is not None and spec.loader is not None  # noqa: PT018
    study = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    found = list(study.runs(ROOT / "tests" / "data" / "disaggregated_sample.csv"))
    assert len(found) == 27
    tpot = np.array([run.ratio("tpot_ms") for run in found])
    ttft = np.array([run.ratio("ttft_ms") for run in found])
    assert np.median(np.abs(tpot - 1)) < 0.20
    # where prefill binds, a first token is what is left of a turn of all requests once their tokens are made: a fifth of the turn
    # is two or three times the first token, so that turns are held to bounds, first tokens to wide ones
    rows = [run.row for run in found]
    tokens = np.array([float(row["osl"]) * float(row["length_share"]) - 1 for row in rows])
    said = np.array([run.ttft_ms + more * run.tpot_ms for run, more in zip(found, tokens, strict=True)])
    turn = np.array(
        [float(row["ttft_ms"]) + more * float(row["tpot_ms"]) for row, more in zip(rows, tokens, strict=True)]
    )
    bound = np.array([run.prefill_busy > 0.9 for run in found])
    assert np.count_nonzero(bound) >= 10
    assert np.median(np.abs(said / turn - 1)[bound]) < 0.25
    assert np.median(np.abs(tpot - 1)[bound]) < 0.20
    assert 0.8 < np.median(ttft) < 1.6
    assert np.median(np.abs(ttft - 1)) < 0.90
