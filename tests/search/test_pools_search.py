"""The search over plans with prefill and decode apart, engines side by side, and any number of GPUs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef
from trilemma.report.chances import joint_chance
from trilemma.search import Constraints, search_serving
from trilemma.search.found import found_of
from trilemma.search.pareto import front_of_two, pareto_front
from trilemma.search.precisions import precisions
from trilemma.search.question import FormatChoice, SearchQuestion
from trilemma.search.search import table_of
from trilemma.search.space import layouts
from trilemma.search.targets import EVEN_ODDS, misses
from trilemma.workloads import Serving

TARGETS = {"isl": 4096, "osl": 1024, "ttft_ms": 1000, "tpot_ms": 40}
#: Weights and cache as published: one choice keeps these tests quick.
ONE = {"precision": ["as-is"], "kv_dtype": ["auto"]}


def search(model="llama-3.1-70b-fp8", gpu="h100-sxm", gpus=8, *, load=None, **options):
    workload = Serving(**(TARGETS if load is None else load))
    return search_serving(
        load_model(model), Cluster.of(find(gpu), gpus), workload, **({"pools": "both"} | ONE | options)
    )


def summaries(result):
    return [found.estimate.inputs["plan"]["summary"] for found in result.plans[: result.best]]


def accounted_for(result):
    return sum(result.rejected.values()) + len(result.plans) == result.searched


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "load"),
    [
        ("llama-3.1-70b-fp8", "h100-sxm", 8, {"isl": 2000, "osl": 300}),
        ("gpt-oss-120b", "b200-sxm", 4, {"isl": 2000, "osl": 300}),
        ("llama-3.1-70b-fp8", "h100-sxm", 16, {"isl": 2000, "osl": 300, "rate": 8.0}),
        ("deepseek-v3", "b200-sxm", 16, {"isl": 2000, "osl": 300, "concurrency": 100}),
    ],
)
def test_the_table_and_the_single_plan_agree(model, gpu, gpus, load):
    loaded, cluster = load_model(model), Cluster.of(find(gpu), gpus)
    (choice,) = (
        FormatChoice(precision=one, kv_dtype="auto")
        for one in precisions(loaded, cluster.accelerator, ["as published"])
    )
    question = SearchQuestion(
        cluster=cluster, workload=Serving(**load), fixed=Constraints(), engine=EngineRef(), pools="disaggregated"
    )  # fmt: skip
    table = table_of(loaded, [choice], question)
    assert len(table) > 10
    for row in range(0, len(table), max(1, len(table) // 6)):
        found = found_of(table, row, question)
        answer = found.estimate
        assert answer.fits
        assert len(found.plan.pools) == 2
        assert answer.speed.tokens_per_s_per_gpu.value == pytest.approx(table.per_gpu[row], rel=1e-9)
        assert answer.speed.ttft_s.interval.value == pytest.approx(table.ttft_s[row], rel=1e-9)
        assert answer.speed.tpot_s.interval.value == pytest.approx(table.tpot_s[row], rel=1e-9)
        assert answer.memory.total.value / answer.memory.capacity_bytes == pytest.approx(table.used[row], rel=1e-6)


def test_replicas_in_the_table_and_in_the_single_plan_agree():
    loaded, cluster = load_model("llama-3.1-70b-fp8"), Cluster.of(find("h100-sxm"), 32)
    (one,) = precisions(loaded, cluster.accelerator, ["as published"])
    for load in ({}, {"concurrency": 333}, {"rate": 7.0}):
        question = SearchQuestion(
            cluster=cluster, workload=Serving(isl=2000, osl=300, **load), fixed=Constraints(), engine=EngineRef()
        )  # fmt: skip
        table = table_of(loaded, [FormatChoice(precision=one, kv_dtype="auto")], question)
        assert table.replicas.max() == 32
        for row in range(0, len(table), max(1, len(table) // 6)):
            speed = found_of(table, row, question).estimate.speed
            # loads that are tried run on engines without a limit of sequences, which keep a little less cache: near its end a
            # slot is waited for longer
            assert speed.tokens_per_s_per_gpu.value == pytest.approx(table.per_gpu[row], rel=1e-9 if load else 1e-3)
            assert speed.ttft_s.interval.value == pytest.approx(table.ttft_s[row], rel=1e-9 if load else 0.05)


def test_both_kinds_of_plans_are_ranked_together_and_shown():
    result = search()
    assert accounted_for(result)
    assert any("prefill" in one for one in summaries(result))
    assert any("prefill" not in one for one in summaries(result))
    speeds = [found.estimate.speed.tokens_per_s_per_gpu.value for found in result.plans[: result.best]]
    assert speeds == sorted(speeds, reverse=True)
    assert all(found.estimate.speed.ttft_s.interval.value <= 1.0 for found in result.plans)


def test_two_replicas_of_tp4_are_among_the_best_for_70b_in_fp8_on_eight_h100():
    # aiconfigurator 0.12 finds 2 x TP4 for vLLM, SGLang and TensorRT-LLM alike (TTFT 1 s, TPOT 40 ms)
    for lengths in ((4096, 1024), (4000, 1000)):
        for engine in ("vllm", "sglang", "tensorrt-llm"):
            load = TARGETS | {"isl": lengths[0], "osl": lengths[1]}
            result = search(load=load, engine=EngineRef(name=engine), precision=None, kv_dtype=None)
            assert "TP4 DP2" in summaries(result), (lengths, engine)


def test_pools_share_a_number_of_gpus_and_the_best_waste_none():
    result = search(gpus=16, pools="disaggregated", load=TARGETS | {"ttft_ms": 3000})
    assert accounted_for(result)
    for found in result.plans[: result.best]:
        prefill, decode = found.plan.pools
        assert (prefill.role, decode.role) == ("prefill", "decode")
        assert found.plan.gpus <= 16
    assert result.plans[0].plan.gpus == 16


def test_a_better_join_than_those_shown_is_not_to_be_found():
    # every join of every layout by hand, on four cards
    result = search(gpus=4, pools="disaggregated", load={"isl": 1024, "osl": 256, "tpot_ms": 20, "ttft_ms": 500}, top=1)
    best = result.plans[0].estimate.speed.tokens_per_s_per_gpu.value
    loaded, cluster = load_model("llama-3.1-70b-fp8"), Cluster.of(find("h100-sxm"), 4)
    (one,) = precisions(loaded, cluster.accelerator, ["as published"])
    highest = 0.0
    for concurrency in range(2, 129, 6):
        load = Serving(isl=1024, osl=256, tpot_ms=20, ttft_ms=500, concurrency=concurrency)
        question = SearchQuestion(
            cluster=cluster,
            workload=load,
            fixed=Constraints(),
            engine=EngineRef(),
            pools="disaggregated",
            confidence=EVEN_ODDS,
        )
        table = table_of(loaded, [FormatChoice(precision=one, kv_dtype="auto")], question)
        good = np.ones(len(table), dtype=bool)
        for _, missed in misses(table.tpot_s, table.held_ttft_s, load, table.margin):
            good &= ~missed
        highest = max(highest, float(table.per_gpu[good].max(initial=0.0)))
    assert best >= 0.93 * highest


def test_a_stated_rate_is_carried_by_both_pools():
    result = search(gpus=16, load={"isl": 1024, "osl": 256, "rate": 9.0}, pools="disaggregated")
    assert accounted_for(result)
    for found in result.plans:
        assert found.estimate.speed.output_tokens_per_s.value == pytest.approx(9.0 * 256)
    assert not search(load={"isl": 1024, "osl": 256, "rate": 1e5}).plans


def test_beyond_a_node_engines_stand_side_by_side():
    result = search(gpus=64, pools="aggregated")
    assert summaries(result)[0] == "16 × TP4"
    assert {int(found.plan.gpus) for found in result.plans} == {64}
    # a mixture's engines may be any part of the whole, inside a node too
    space = layouts(load_model("gpt-oss-120b"), gpus=8, fixed=Constraints(), gpus_per_node=8)
    assert set(space.replicas.tolist()) == {1, 2, 4, 8}
    assert np.all(space.replicas * np.asarray(space.layout.gpus) == 8)


def test_without_a_load_any_number_of_gpus_up_to_a_node_is_tried():
    result = search(free=True, load={"isl": 4096, "osl": 1024, "tpot_ms": 40})
    assert accounted_for(result)
    assert result.least_gpus is None
    assert result.cheapest == 0
    assert {found.gpus for found in result.plans} <= set(range(1, 9))
    fixed = [search(gpus=n, load={"isl": 4096, "osl": 1024, "tpot_ms": 40}, top=1) for n in (1, 2, 4, 8)]
    best = max(
        found.plans[0].estimate.speed.tokens_per_s_per_gpu.value
        for found in fixed
        if found.plans and found.meets_targets
    )
    assert result.plans[0].estimate.speed.tokens_per_s_per_gpu.value >= best * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["rate", "concurrency"])
@pytest.mark.parametrize("pools", ["aggregated", "disaggregated"])
def test_more_load_never_takes_fewer_gpus(kind, pools):
    loads = (1, 3, 8, 20, 50, 120) if kind == "rate" else (1, 10, 64, 200, 1000, 5000)
    found = [search(free=True, load=TARGETS | {kind: load}, pools=pools, top=1) for load in loads]
    assert all(accounted_for(one) for one in found)
    gpus = [one.least_gpus for one in found]
    assert None not in gpus
    assert gpus == sorted(gpus)
    for one, load in zip(found, loads, strict=True):
        speed = one.plans[0].estimate.speed
        assert joint_chance(one.plans[0].estimate) >= EVEN_ODDS - 0.001
        if kind == "rate":
            assert speed.output_tokens_per_s.value == pytest.approx(load * 1024)


def test_the_fewest_gpus_are_no_more_than_a_search_of_each_number_finds():
    load = TARGETS | {"rate": 4.0}
    least = search(free=True, load=load, top=1).least_gpus
    fewer = [search(gpus=gpus, load=load, top=1).meets_targets for gpus in range(1, least)]
    assert not any(fewer)


def test_a_model_that_no_node_holds_gets_engines_of_several():
    result = search("deepseek-v3", "h100-sxm", load={"isl": 4096, "osl": 1024, "tpot_ms": 100}, free=True)
    assert result.plans[0].gpus >= 16


def test_targets_are_harder_to_meet_for_fewer_gpus():
    counts = [
        search(free=True, load=TARGETS | {"rate": 10.0, "tpot_ms": tpot}, top=1).least_gpus for tpot in (25, 40, 100)
    ]
    assert all(more >= fewer for more, fewer in pairwise(counts))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": EngineRef(name="llama.cpp"), "model": "llama-3.1-8b"}, "llama.cpp has no prefill and decode pools"),
        ({"gpus": 1}, "take at least 2 GPUs"),
        ({"load": {"isl": 100, "osl": 1}}, "an output of 1 token"),
        ({"gpus": 2, "fixed": Constraints(tp=2)}, "two engines of the degrees given do not go onto 2 GPUs"),
    ],
)
def test_pools_that_cannot_be_are_refused_when_asked_for_alone(options, words):
    with pytest.raises(InputError, match=words):
        search(pools="disaggregated", **options)
    if "engine" not in options and "fixed" not in options:
        assert all(len(found.plan.pools) == 1 for found in search(**options).plans)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40))
@settings(max_examples=80)
def test_the_front_of_two_axes_is_the_pareto_front(points):
    array = np.array(points, dtype=float).reshape(-1, 2)
    distinct = {tuple(point) for point in array[pareto_front(array)]}
    found = array[front_of_two(array)]
    assert {tuple(point) for point in found} == distinct
    assert len(found) == len(distinct)


@pytest.mark.parametrize("load", [{"concurrency": 900}, {"rate": 30.0}])
def test_very_many_joins_are_thinned_without_losing_the_best(load, monkeypatch):
    from trilemma.search import disaggregated

    asked = {"gpus": 64, "pools": "disaggregated", "load": {"isl": 4096, "osl": 1024} | load, "top": 1}
    thinned = search(**asked)
    monkeypatch.setattr(disaggregated, "_MANY", 10**9)
    whole = search(**asked)
    assert accounted_for(thinned)
    assert thinned.searched == whole.searched
    speeds = [one.plans[0].estimate.speed for one in (thinned, whole)]
    for name in ("output_tokens_per_s", "request_s"):
        few, every = (getattr(speed, name) for speed in speeds)
        few, every = (getattr(one, "interval", one).value for one in (few, every))
        assert few == pytest.approx(every, rel=0.02)
