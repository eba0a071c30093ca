"""`compare` and `plan` agree; nearest answers are near and say which target blocks."""

from __future__ import annotations

import pytest

from trilemma.ask.questions import compare, fit, plan
from trilemma.errors import InputError

LOAD = {"serve": "4096/1024", "ttft": 2000, "tpot": 50}


@pytest.mark.parametrize(
    ("model", "gpus", "load"),
    [
        ("llama-3.3-70b", ["h100-sxm", "h200-sxm:16"], LOAD | {"rate": 8}),
        ("qwen3-32b", ["l40s", "a100-sxm4-80gb", "b200:2"], {"serve": "2048/512", "tpot": 60, "concurrency": 96}),
        ("gpt-oss-120b", ["h100-sxm:2", "mi300x"], {"serve": "1024/1024"}),
    ],
)
def test_compare_and_plan_agree_to_the_digit(model, gpus, load):
    table = compare(model, gpus, **load)
    for gpu, candidate in zip(gpus, table.candidates, strict=True):
        found = plan(model, gpu, **load)
        first = found.result.plans[0]
        assert candidate.best.gpus == first.gpus
        assert candidate.best_meets == found.fits
        assert candidate.best.plan == first.plan
        assert candidate.best.estimate.speed.ttft_s == first.estimate.speed.ttft_s
        assert candidate.best.estimate.usd_per_hour == first.estimate.usd_per_hour


def test_a_number_that_does_not_carry_the_load_is_told_apart_from_one_that_does_not_fit():
    carried, held = (str(compare("llama-3.3-70b", [gpu], **LOAD, rate=20)) for gpu in ("l40s:4", "t4:1"))
    assert "fits, but does not carry the load" in carried
    assert "does not fit" not in carried
    assert "does not fit" in held
    more = compare("qwen3-32b", ["h100-sxm:1"], **LOAD, rate=10)
    needed = plan("qwen3-32b", "h100-sxm", **LOAD, rate=10).result.least_gpus
    assert more.candidates[0].least_gpus == needed > 1
    assert f"{needed} GPUs carry it" in str(more)


def test_a_card_that_runs_another_engine_alone_is_judged_on_it():
    table = compare("gpt-oss-20b", ["m3-ultra:1", "l40s:1"], serve="1024/256")
    apple, nvidia = table.candidates
    assert apple.best.plan.engine.name == "llama.cpp"
    assert nvidia.best.plan.engine.name == "vllm"
    assert "judged on llama.cpp" in " ".join(str(table).split())


def test_rows_say_gpus_dollars_and_kilowatts():
    screen = str(compare("qwen3-32b", ["l40s", "h100-sxm"], **LOAD, rate=3))
    for words in ("$/h", "kW", " x L40S", " x H100"):
        assert words in screen


@pytest.mark.parametrize(
    ("gpu", "options"),
    [
        ("mi300x", {"ttft": 2000, "tpot": 50, "confidence": 0.95}),
        ("b200", {"ttft": 2, "tpot": 50}),
        ("h100-sxm", {"ttft": 50, "tpot": 3}),
    ],
)
def test_nearest_plans_take_no_absurd_number_of_gpus(gpu, options):
    found = plan("llama-3.3-70b", gpu, serve="8192/1024", rate=20, **options)
    relaxed = plan("llama-3.3-70b", gpu, serve="8192/1024", rate=20, ttft=10_000, tpot=200)
    assert not found.fits
    assert found.result.plans[0].gpus <= 8 * relaxed.result.least_gpus


@pytest.mark.parametrize("gpu", ["h100-sxm:8", "l40s:8", "b200:4"])
def test_the_target_that_blocks_is_named_with_what_the_quickest_takes(gpu):
    found = plan("llama-3.3-70b", gpu, serve="8192/1024", ttft=2)
    quickest = min(one.speed.ttft_s.interval.value for one in found.plans)
    (words,) = found.result.blocked
    assert "--ttft 2 ms is out of reach" in words
    assert f"{quickest * 1e3:.3g} ms" in words or f"{quickest:.2f} s" in words
    assert "for 2 s give --ttft 2000" in words
    assert "--ttft 2 ms is out of reach" in str(found)
    assert found.to_dict()["blocked"]


def test_a_time_per_token_below_that_of_one_reader_is_named():
    found = plan("llama-3.3-70b", "h100-sxm:8", serve="8192/1024", tpot=2)
    assert not found.fits
    assert "--tpot 2 ms is out of reach" in found.result.blocked[0]


@pytest.mark.parametrize(("engine", "gpu"), [("vllm", "m3-ultra"), ("sglang", "m1-ultra"), ("tensorrt-llm", "mi300x")])
def test_engines_that_run_the_card_are_named(engine, gpu):
    with pytest.raises(InputError) as refused:
        fit("gpt-oss-20b", gpu, engine=engine)
    assert "--engine" in refused.value.flags
    assert "llama.cpp" in refused.value.flags


def test_no_rules_known_is_not_worded_as_does_not_run():
    with pytest.raises(InputError, match="no rules of vLLM on TPU v6e"):
        fit("qwen3-32b", "google-tpu-v6e:8")


def test_the_document_lists_what_was_assumed():
    found = plan("qwen3-32b", "l40s", serve="4096/1024", tpot=60)
    assert any("--context" in words for words in found.to_dict()["assumed"])
    assert any("--ttft" in words for words in found.to_dict()["assumed"])
