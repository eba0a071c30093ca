"""Estimates of plans with several engines: pools apart, replicas side by side, and the chance of a target."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trilemma.errors import InputError
from trilemma.estimate.serving import estimate
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.intervals import Interval
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.plans.document import plan_from_document
from trilemma.question import Question
from trilemma.report.document import dumps, estimate_document
from trilemma.report.text import render_estimate
from trilemma.workloads import Serving

LOAD = Serving(isl=4096, osl=1024, rate=3.0, ttft_ms=2000, tpot_ms=40)


def plan(*, engine="vllm", prefill=(2, 2), decode=(4, 1)):
    pools = tuple(
        Pool(role=role, layout=Layout(tp=tp), options=ServeOptions(), replicas=count)
        for role, (tp, count) in (("prefill", prefill), ("decode", decode))
    )
    return Plan(engine=EngineRef(name=engine), pools=pools)


def answer(one, *, gpus=8, gpu="h100-sxm", model="llama-3.1-70b-fp8", load=LOAD):
    return estimate(Question(model=load_model(model), cluster=Cluster.of(find(gpu), gpus), workload=load, plan=one))


@pytest.fixture(scope="module")
def pools_apart():
    return answer(plan())


def test_a_plan_of_two_pools_is_told_as_such(pools_apart):
    assert pools_apart.fits
    assert pools_apart.inputs["plan"]["summary"] == "2 × TP2 prefill + 1 × TP4 decode"
    assert pools_apart.speed.output_tokens_per_s.value == pytest.approx(3 * 1024)
    assert pools_apart.speed.tokens_per_s_per_gpu.value == pytest.approx(3 * 1024 / 8)
    assert "pool limits" in pools_apart.bottleneck.detail
    assert any(one.code == "kv-transfer" and "NVLink" in one.message for one in pools_apart.warnings)


def test_across_nodes_the_network_carries_the_cache_and_its_source_is_told():
    found = answer(plan(prefill=(4, 2), decode=(8, 1)), gpus=16)
    (told,) = (one.message for one in found.warnings if one.code == "kv-transfer")
    assert "the network of each card (50 GB/s: " in told


def test_every_pool_has_its_ranks_and_the_ledger_is_of_the_fuller_card(pools_apart):
    assert [(rank["pool"], rank["count"]) for rank in pools_apart.ranks] == [("prefill", 4), ("decode", 4)]
    totals = [sum(rank["memory"].values()) for rank in pools_apart.ranks]
    assert sum(float(line.bytes) for line in pools_apart.memory.ledger) == pytest.approx(max(totals))
    weights = [rank["memory"]["weights"] for rank in pools_apart.ranks]
    assert weights[0] == pytest.approx(2 * weights[1], rel=0.02)


def test_operators_sum_to_the_time_per_token(pools_apart):
    speed = pools_apart.speed
    assert sum(line.seconds for line in speed.operators) == pytest.approx(speed.tpot_s.interval.value)
    assert sum(speed.ttft_lines.values()) == pytest.approx(speed.ttft_s.interval.value)
    assert "transfer" in speed.ttft_lines


def test_a_document_says_the_plan_again(pools_apart):
    document = json.loads(dumps(estimate_document(pools_apart)))
    again = answer(plan_from_document(document["inputs"]["plan"]))
    assert json.loads(dumps(estimate_document(again))) == document
    assert [one["pool"] for one in document["commands"]] == ["prefill", "decode"]
    assert {one["name"] for one in document["targets"]} == {"ttft", "tpot"}


def test_the_screen_names_both_pools_and_the_chances(pools_apart):
    text = render_estimate(pools_apart)
    for words in ("2 × TP2 prefill + 1 × TP4 decode", "prefill, 2 of them: vllm serve", "TTFT ≤ 2000 ms holds with a"):
        assert words in text


def test_the_pool_that_does_not_start_is_named():
    found = answer(plan(prefill=(1, 4), decode=(4, 1)), model="llama-3.1-70b")
    assert not found.fits
    assert found.verdict.reason.startswith("prefill: ")
    assert found.speed is None


def test_idle_cards_are_paid_for():
    found = answer(plan(prefill=(2, 1), decode=(4, 1)), load=replace(LOAD, rate=1.0))
    assert found.speed.tokens_per_s_per_gpu.value == pytest.approx(1024 / 8)
    assert any(one.code == "idle-gpus" and "2 of the 8 GPUs" in one.message for one in found.warnings)


@pytest.mark.parametrize(
    ("one", "gpus", "load", "words"),
    [
        (plan(), 6, LOAD, "the pools take 8 GPUs, but `gpu` names 6"),
        (plan(engine="llama.cpp"), 8, LOAD, "llama.cpp has no prefill and decode pools"),
        (plan(), 8, replace(LOAD, osl=1), "`osl` 1 leaves a decode pool nothing"),
        (Plan(pools=(Pool(), Pool())), 8, LOAD, "pools of serve, serve"),
        (plan(prefill=(3, 1)), 8, LOAD, "`tp` 3"),
    ],
)
def test_what_cannot_be_is_refused(one, gpus, load, words):
    with pytest.raises(InputError, match=words):
        answer(one, gpus=gpus, load=load)


def test_replicas_share_the_load_and_add_their_tokens():
    options = ServeOptions()
    one = answer(Plan(pools=(Pool(layout=Layout(tp=4), options=options),)), gpus=4, load=replace(LOAD, rate=1.0))
    three = answer(Plan(pools=(Pool(layout=Layout(tp=4), options=options, replicas=3),)), gpus=12)
    assert three.inputs["plan"]["summary"] == "3 × TP4"
    assert three.speed.output_tokens_per_s.value == pytest.approx(3 * one.speed.output_tokens_per_s.value)
    assert three.speed.tokens_per_s_per_gpu.value == pytest.approx(one.speed.tokens_per_s_per_gpu.value)
    assert three.speed.ttft_s == one.speed.ttft_s
    assert three.usd_per_hour.value == pytest.approx(3 * one.usd_per_hour.value)
    with pytest.raises(InputError, match="3 replicas of `tp` 4 x `pp` 1 x `dp` 1 takes 12 GPUs, but `gpu` names 8"):
        answer(Plan(pools=(Pool(layout=Layout(tp=4), options=options, replicas=3),)), gpus=8)


def test_the_chance_of_a_target_by_hand():
    # log-normal on each side of the median 1.5; its 5th and 95th percentile are the bounds
    figure = Interval(value=1.5, low=1.0, high=4.0)
    assert figure.chance_below(1.5) == pytest.approx(0.5)
    assert figure.chance_below((1.5 * 4.0) ** 0.5) == pytest.approx(0.7946, abs=1e-4)  # half of 1.645 deviations above
    assert figure.chance_below(1.5**0.5) == pytest.approx(0.2054, abs=1e-4)
    assert figure.chance_below(1.0) == pytest.approx(0.05, abs=1e-4)
    assert figure.chance_below(4.0) == pytest.approx(0.95, abs=1e-4)
    assert figure.chance_below(0.0) == 0.0
    assert Interval.exact(3.0).chance_below(3.0) == 1.0
    assert Interval.exact(3.0).chance_below(2.9) == 0.0
    assert Interval(value=3.0, low=1.0, high=3.0).chance_below(3.0) == 1.0
