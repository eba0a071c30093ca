"""Watts of an estimate: between idle and the limit, more with more to do, fewer joules a token with more requests at once."""

from __future__ import annotations

from typing import Any

import trilemma as tl


def power(model: str = "qwen3-32b", gpu: str = "h100-sxm:2", **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = tl.fit(model, gpu, **{"isl": 1024, "osl": 512, **options}).to_dict()["power"]
    return found


def test_a_load_draws_less_than_the_limit_and_more_the_more_there_is_to_do() -> None:
    draws = [power(concurrency=one) for one in (1, 8, 64)]
    assert all(one["limit_watts"] == 1400 for one in draws)
    for one in draws:
        assert 0 < one["watts_low"] < one["watts"] <= one["watts_high"] <= 1400
        assert one["joules_per_token_low"] < one["joules_per_token"] < one["joules_per_token_high"]
    assert [one["watts"] for one in draws] == sorted(one["watts"] for one in draws)
    joules = [one["joules_per_token"] for one in draws]
    assert joules == sorted(joules, reverse=True)
    assert joules[0] > 5 * joules[-1]


def test_few_requests_leave_cards_near_idle() -> None:
    rare, busy = power(rate=0.01), power(rate=4)
    assert rare["watts"] < 0.5 * 1400
    assert rare["watts"] < busy["watts"]
    assert rare["joules_per_token"] > 20 * busy["joules_per_token"]


def test_a_plan_that_does_not_start_says_only_how_much_it_could_draw() -> None:
    found = tl.fit("llama-3.1-70b", "h100-sxm", isl=1024, osl=512).to_dict()["power"]
    assert found["watts"] == found["watts_high"] == 700
    assert 100 < found["watts_low"] < 400
    assert "joules_per_token" not in found


def test_training_draws_up_to_the_limit() -> None:
    found = tl.train("llama-3-8b", "h100-sxm:8", train=8192, global_batch=64).to_dict()["plans"][0]["power"]
    assert 0.6 * 5600 < found["watts_low"] < found["watts"] <= found["watts_high"] == 5600
