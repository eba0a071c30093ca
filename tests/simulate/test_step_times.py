"""Steps looked up against the timing functions themselves: within 1 %, whatever the model and the step."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from trilemma.ask.nouns import cluster_of, engines_of, weights_of
from trilemma.ask.options import FIT, settled
from trilemma.estimate.pool_start import start_pool
from trilemma.estimate.timed_plan import TimedPlan, timed_plan
from trilemma.simulation.serving.step_times import StepTimes
from trilemma.timing.forward_pass import decode_step, prefill_pass
from trilemma.timing.mixed_step import mixed_step

PLANS = {
    "llama-3.1-8b": ("h100-sxm", {}),
    "gpt-oss-20b": ("h100-sxm", {}),
    "qwen3-30b-a3b": ("h200-sxm:2", {}),
    "deepseek-r1": ("b200-sxm:8", {}),
    "gemma-3-27b": ("a100-sxm4-80gb:2", {"engine": "sglang"}),
}
MOST_SEQUENCES, MOST_TOKENS, MOST_CONTEXT = 256, 8192, 32768


@cache
def tables(model: str) -> tuple[TimedPlan, StepTimes]:
    gpu, options = PLANS[model]
    asked = settled(FIT, options)
    cluster = cluster_of(gpu, asked)
    weights = weights_of(model, cluster.accelerator, precision=None, models=None, engine=asked.engine)
    plan, cluster = engines_of(gpu, asked, cluster, context=MOST_CONTEXT, quantization=weights.on_load)
    question = weights.asked(cluster=cluster, workload=_load(), plan=plan, free_bytes=None, terms=None)
    timed = timed_plan(start_pool(plan.pool, question), question)
    return timed, StepTimes(timed, most_sequences=MOST_SEQUENCES, most_tokens=MOST_TOKENS, most_context=MOST_CONTEXT)


def _load() -> Any:
    from trilemma.workloads import Serving

    return Serving(context=MOST_CONTEXT)


@pytest.mark.parametrize("model", PLANS)
def test_decode_steps(model: str) -> None:
    timed, times = tables(model)
    shapes = np.random.default_rng(1)
    for _ in range(60):
        batch, context = int(shapes.integers(1, MOST_SEQUENCES + 1)), float(2 ** shapes.uniform(0, 14.9))
        step = decode_step(
            timed.work, timed.machine, timed.layout, batch=batch, context=context, kv_format=timed.kv_format
        )
        assert times.decode_s(batch, context) == pytest.approx(float(step.total_s), rel=0.01), (batch, context)


@pytest.mark.parametrize("model", PLANS)
def test_steps_that_prefill_and_decode(model: str) -> None:
    timed, times = tables(model)
    shapes = np.random.default_rng(2)
    for _ in range(60):
        batch = int(shapes.integers(1, MOST_SEQUENCES + 1))
        context, tokens = float(2 ** shapes.uniform(4, 13)), int(2 ** shapes.uniform(0, 13))
        cached = int(shapes.choice([0, 1, 2 ** shapes.uniform(0, 14)]))
        rows = {"tokens": tokens, "cached": cached, "kv_format": timed.kv_format}
        step = mixed_step(timed.work, timed.machine, timed.layout, batch=batch, context=context, **rows)
        found = times.mixed_s(batch, context, [(tokens, cached)], 1)
        assert found == pytest.approx(float(step.total_s), rel=0.01), (batch, context, tokens, cached)


@pytest.mark.parametrize("model", PLANS)
def test_prompts_alone(model: str) -> None:
    timed, times = tables(model)
    for tokens in (1, 17, 100, 1000, 2049, 8192):
        for cached in (0, 500, 20000):
            one = prefill_pass(
                timed.work, timed.machine, timed.layout, tokens=tokens, cached=cached, kv_format=timed.kv_format
            )
            assert times.mixed_s(0, 0.0, [(tokens, cached)], 1) == pytest.approx(float(one.total_s), rel=0.01)


def test_runs_of_steps_are_their_sum() -> None:
    _, times = tables("llama-3.1-8b")
    one_by_one = sum(times.decode_s(32, 700.0 + at) for at in range(400))
    assert times.run_s(32, 32 * 700, 400) == pytest.approx(one_by_one, rel=1e-3)


def test_scaled_times_scale_all_of_a_step() -> None:
    _, times = tables("llama-3.1-8b")
    twice = times.scaled(2.0)
    assert twice.decode_s(200, 900.0) == pytest.approx(2 * times.decode_s(200, 900.0))
    assert twice.mixed_s(9, 900.0, [(300, 40)], 1) == pytest.approx(2 * times.mixed_s(9, 900.0, [(300, 40)], 1))


def test_a_small_chunk_hides_behind_the_weights() -> None:
    """Sarathi-Serve (Agrawal et al. 2024, section 4.2): a chunk in the shadow of a decode step's traffic costs
    far less than a pass of its own."""
    _, times = tables("llama-3.1-8b")
    more_s = times.mixed_s(32, 1000.0, [(64, 0)], 1) - times.decode_s(32, 1000.0)
    assert more_s < 0.15 * times.mixed_s(0, 0.0, [(64, 0)], 1)
