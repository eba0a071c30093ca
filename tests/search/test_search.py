"""The search as a whole, on the catalogue and the real engine rules."""

from __future__ import annotations

import pytest

from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.search import Constraints, search_serving
from trilemma.search.space import BATCHES
from trilemma.workloads import Serving


def search(model, gpu, gpus, **load):
    options = {
        name: load.pop(name)
        for name in ("fixed", "precision", "kv_dtype", "top", "front", "pools", "free")
        if name in load
    }
    return search_serving(load_model(model), Cluster.of(find(gpu), gpus), Serving(**load), **options)


@pytest.fixture(scope="module")
def main_job():
    return search("llama-3.1-70b", "h200-sxm", 8, isl=4096, osl=1024, front=8)


def test_every_plan_is_accounted_for(main_job):
    assert main_job.searched == main_job.legal
    assert 10 * len(BATCHES) * 6 <= main_job.searched <= 10 * (len(BATCHES) + 3) * 6
    assert sum(main_job.rejected.values()) + len(main_job.plans) == main_job.searched
    assert main_job.fitting <= main_job.legal


def test_a_target_is_assumed_only_where_nothing_is_asked(main_job):
    assert (main_job.workload.tpot_ms, main_job.workload.ttft_ms) == (50, 2000)
    assert "--tpot 50 ms" in main_job.assumed[0]
    assert "--ttft 2000 ms" in main_job.assumed[0]
    assert not search("llama-3.1-8b", "h200-sxm", 1, isl=512, osl=128, concurrency=8).assumed
    one = search("llama-3.1-8b", "h200-sxm", 1, isl=512, osl=128, tpot_ms=20)
    assert (one.workload.tpot_ms, one.workload.ttft_ms) == (20, 2000)


def test_a_target_that_nobody_asked_for_is_given_up_where_no_plan_holds_it():
    found = search("llama-3.1-70b", "l40s", 8, isl=32768, osl=512)  # a prompt of 32,768 takes longer than 2 s here
    assert found.meets_targets
    assert found.workload.ttft_ms is None
    assert "left open" in found.assumed[0]


def test_best_first_and_within_the_target(main_job):
    speeds = [found.estimate.speed.tokens_per_s_per_gpu.value for found in main_job.plans[: main_job.best]]
    assert speeds == sorted(speeds, reverse=True)
    assert all(found.estimate.speed.tpot_s.interval.value <= 0.05 for found in main_job.plans)
    assert all(found.estimate.fits for found in main_job.plans)


def test_weights_as_published_are_among_the_best(main_job):
    unchanged = [
        f
        for f in main_job.plans[: main_job.best]
        if f.precision.quality == "unchanged" and f.plan.pool.options.kv_dtype is None
    ]
    assert unchanged
    assert unchanged[0].estimate.command.startswith("vllm serve meta-llama/Llama-3.1-70B-Instruct --")


def test_no_plan_shown_beats_one_of_the_front(main_job):
    front = [main_job.plans[at].estimate.speed for at in main_job.pareto]
    for one in front:
        for other in main_job.plans:
            speed = other.estimate.speed
            assert not (
                speed.tokens_per_s_per_gpu.value > one.tokens_per_s_per_gpu.value * (1 + 1e-9)
                and speed.tpot_s.interval.value < one.tpot_s.interval.value * (1 - 1e-9)
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpu", "gpus"),
    [("llama-3.1-70b", "h200-sxm", 8), ("deepseek-v3", "b200-sxm", 8), ("gpt-oss-120b", "h100-sxm", 4)],
)
def test_the_table_and_the_single_plan_agree(model, gpu, gpus):
    from trilemma.plans import EngineRef
    from trilemma.search.found import found_of
    from trilemma.search.precisions import kv_dtypes, precisions
    from trilemma.search.question import FormatChoice, SearchQuestion
    from trilemma.search.search import table_of

    loaded, cluster = load_model(model), Cluster.of(find(gpu), gpus)
    choices = [
        FormatChoice(precision=one, kv_dtype=kv)
        for one in precisions(loaded, cluster.accelerator, None)
        for kv in kv_dtypes(loaded, cluster.accelerator, None)
    ]
    question = SearchQuestion(
        cluster=cluster, workload=Serving(isl=2000, osl=300), fixed=Constraints(), engine=EngineRef()
    )
    table = table_of(loaded, choices, question)
    assert len(table) > 100
    for row in range(0, len(table), 61):
        answer = found_of(table, row, question).estimate
        assert answer.fits
        # the plan is told its limit of sequences, which frees a little cache; the table tries loads on engines that are told none
        assert answer.speed.tokens_per_s_per_gpu.value == pytest.approx(table.per_gpu[row], rel=1e-5)
        assert answer.speed.ttft_s.interval.value == pytest.approx(table.ttft_s[row], rel=1e-3)
        used = answer.memory.total.value / answer.memory.capacity_bytes
        assert used <= table.used[row] * (1 + 1e-9)
        assert used == pytest.approx(table.used[row], rel=0.01)


def test_two_replicas_of_tp4_are_among_the_best_for_70b_in_fp8_on_eight_h100():
    # aiconfigurator 0.12 finds 2 x TP4 for vLLM, SGLang and TensorRT-LLM alike (4096/1024, TTFT 1 s, TPOT 40 ms)
    found = search("llama-3.1-70b", "h100-sxm", 8, isl=4096, osl=1024, ttft_ms=1000, tpot_ms=40, precision=["fp8"])
    assert "TP4 DP2" in [one.estimate.inputs["plan"]["summary"] for one in found.plans[:5]]


def test_70b_in_bf16_on_eight_h200_agrees_with_measured_kernels():
    # aiconfigurator 0.12, vLLM 0.24 tables, 4096/1024, TPOT 50 ms: 2 x TP4, 96 each, 501.26 tokens/s/GPU, 21.16 tokens/s/user
    found = search(
        "llama-3.1-70b",
        "h200-sxm",
        8,
        isl=4096,
        osl=1024,
        concurrency=192,
        tpot_ms=60,
        ttft_ms=5000,
        precision=["as-is"],
        kv_dtype=["auto"],
    )
    best = found.plans[0]
    assert best.estimate.inputs["plan"]["summary"] == "TP4 DP2"
    speed = best.estimate.speed
    assert speed.tokens_per_s_per_gpu.value == pytest.approx(501.26, rel=0.15)


def test_an_impossible_target_shows_the_nearest_misses():
    result = search("llama-3.1-70b", "h200-sxm", 8, isl=4096, osl=1024, tpot_ms=1)
    assert not result.meets_targets
    assert result.plans
    assert result.rejected["misses --tpot 1 ms"] > 0
    tpots = [found.estimate.speed.tpot_s.interval.value for found in result.plans[: result.best]]
    assert tpots == sorted(tpots)


def test_a_rate_is_carried_and_the_quickest_answer_wins():
    result = search("llama-3.1-70b", "h200-sxm", 8, isl=1024, osl=256, rate=4.0)
    whole = []
    for found in result.plans[: result.best]:
        speed = found.estimate.speed
        assert speed.output_tokens_per_s.value / 256 == pytest.approx(4.0)
        whole.append(speed.ttft_s.interval.value + 256 * speed.tpot_s.interval.value)
    assert whole[:-1] == sorted(whole[:-1])
    assert not search("llama-3.1-70b", "h200-sxm", 8, isl=1024, osl=256, rate=1e5).plans


def test_settled_degrees_are_kept():
    result = search("llama-3.1-70b", "h200-sxm", 8, isl=1024, osl=256, fixed=Constraints(tp=4, dp=1), concurrency=16)
    assert {found.estimate.inputs["plan"]["summary"] for found in result.plans} == {"TP4 PP2"}


def test_only_four_bits_of_qwen3_32b_fit_one_rtx_4090():
    result = search("qwen3-32b", "rtx-4090", 1, isl=2048, osl=512)
    assert result.plans
    assert all(found.precision.name == "awq" for found in result.plans)
    assert result.rejected["weights do not fit the card"] > 0


def test_a_low_rate_makes_no_more_tokens_than_are_asked_for():
    (found, *_) = search("llama-3.1-70b", "h200-sxm", 8, isl=1024, osl=256, rate=0.01).plans
    assert found.requests == 1
    assert found.estimate.speed.output_tokens_per_s.value == pytest.approx(2.56)


def test_requests_longer_than_the_model_are_refused():
    with pytest.raises(InputError, match=r"201,?000 tokens a request are more than the 131,?072 positions"):
        search("llama-3.1-70b", "h200-sxm", 8, isl=200_000, osl=1000)


def test_gpus_that_cannot_be_laid_out_are_refused():
    with pytest.raises(InputError, match=r"cannot be laid out on 7 GPUs: tp does not divide the 64 attention heads"):
        search("llama-3.1-70b", "h200-sxm", 7, isl=1000, osl=100, fixed=Constraints(tp=7))


def test_cache_formats_that_mean_the_same_are_tried_once():
    # DeepSeek-V4 keeps an FP8 cache whatever is asked
    result = search("deepseek-v4-flash", "b200-sxm", 8, isl=1000, osl=100)
    shown = [
        (found.precision.name, found.kv_format, found.estimate.inputs["plan"]["summary"]) for found in result.plans
    ]
    assert len(set(shown)) == len(shown)
    assert sum(result.rejected.values()) + len(result.plans) == result.searched
