"""Where start-up ends, and which memory fractions pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trilemma import engines
from trilemma.engines import verdict
from trilemma.engines.base import StartUp
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, ServeOptions
from trilemma.quantities import GIB


def _start(model: str, gpu: str = "h100-sxm", *, layout: Layout | None = None, version: str = "0.19.0",
           free_bytes: float | None = None, **options: Any) -> StartUp:  # fmt: skip
    return engines.get("vllm").start_up(
        model=load_model(model), accelerator=find(gpu), layout=layout or Layout(), options=ServeOptions(**options),
        version=version, free_bytes=free_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "gpu", "layout", "options", "stage"),
    [
        ("llama-3.1-8b", "h100-sxm", Layout(), {"context": 8192}, "ok"),
        ("llama-3.1-70b", "h100-sxm", Layout(), {"context": 8192}, "oom_load"),
        # vllm-project/vllm issue 23278: 65.97 GiB loaded, -2.14 left (sequences of the day's default)
        ("gpt-oss-120b", "h100-sxm", Layout(), {"version": "0.10.0"}, "oom_profile"),
        # vllm-project/vllm issue 16712: dies while loading
        ("llama-4-scout", "h100-nvl", Layout(tp=2), {"memory_fraction": 0.99, "version": "0.8.4"}, "oom_load"),
        ("llama-3.1-8b", "l4", Layout(), {"context": 131072, "version": "0.28.0"}, "kv_too_small"),
        ("deepseek-r1", "h100-sxm", Layout(tp=8), {"context": 163840}, "oom_load"),
    ],
)
def test_stages_of_known_starts(model: str, gpu: str, layout: Layout, options: dict[str, Any], stage: str) -> None:
    found, probability = verdict.likeliest(_start(model, gpu, layout=layout, **options))
    assert found == stage
    assert probability > 0.5


def test_probabilities_sum_to_one_and_follow_the_spread() -> None:
    degrees = np.array([1, 2, 4, 8])
    table = _start("llama-3.1-70b", layout=Layout(tp=degrees), context=8192)
    odds = verdict.stage_probabilities(table)
    assert np.allclose(sum(odds.values()), 1)
    assert all(np.all((value >= 0) & (value <= 1)) for value in odds.values())
    assert odds["ok"][0] < 0.01
    assert odds["ok"][3] > 0.95
    stages, chances = verdict.likeliest(table)
    assert list(stages) == ["oom_load", "ok", "ok", "ok"]
    assert chances.shape == (4,)


def test_a_card_held_by_others_is_refused() -> None:
    """CodeLlama 34B on H100s with 60.87 GiB free of a budget of 75.23 (llm-d-planner pull request 205)."""
    start = _start("codellama-34b", layout=Layout(tp=2), memory_fraction=0.95, free_bytes=60.87 * GIB, context=8192)
    assert verdict.budget_refused(start)
    assert verdict.likeliest(start) == ("oom_load", pytest.approx(1.0))
    shared = _start("codellama-34b", layout=Layout(tp=2), memory_fraction=0.7, free_bytes=60.87 * GIB, context=8192)
    assert verdict.likeliest(shared)[0] == "ok"


def test_old_engines_count_what_others_hold() -> None:
    alone, shared = (_start("llama-2-7b", version="0.6.0", context=4096, free_bytes=free) for free in (None, 60 * GIB))
    assert shared.pool.available_bytes < alone.pool.available_bytes - 15 * GIB


def test_fraction_moves_up_for_a_small_pool() -> None:
    """Qwen2.5-7B-AWQ on an L4: .35 is refused, .45 starts (vLLM 0.28)."""
    small = _start("qwen2.5-7b-awq", "l4", memory_fraction=0.35, context=32768, version="0.28.0")
    large = _start("qwen2.5-7b-awq", "l4", memory_fraction=0.45, context=32768, version="0.28.0")
    assert verdict.likeliest(small)[0] == "kv_too_small"
    assert verdict.likeliest(large)[0] == "ok"
    bounds = verdict.feasible_fraction(small)
    assert bounds is not None
    assert 0.35 < bounds[0] < 0.45 < bounds[1] <= 1
    assert verdict.feasible_fraction(large) == pytest.approx(bounds, abs=0.02)


def test_feasible_bounds_really_start() -> None:
    start = _start("qwen3-32b", layout=Layout(tp=2), context=16384, memory_fraction=0.5)
    bounds = verdict.feasible_fraction(start)
    assert bounds is not None
    just = _start("qwen3-32b", layout=Layout(tp=2), context=16384, memory_fraction=bounds[0] + 1e-4)
    short = _start("qwen3-32b", layout=Layout(tp=2), context=16384, memory_fraction=bounds[0] - 1e-2)
    assert just.pool.available_bytes >= just.pool.need_bytes
    assert short.pool.available_bytes < short.pool.need_bytes


def test_no_fraction_helps_weights_that_do_not_fit() -> None:
    assert verdict.feasible_fraction(_start("llama-3.1-70b", context=8192)) is None
    low, high = verdict.feasible_fraction(_start("llama-3.1-70b", layout=Layout(tp=np.array([1, 4])), context=8192))  # type: ignore[misc]
    assert (low > high).tolist() == [True, False]


def test_recurrent_states_are_part_of_the_least_pool() -> None:
    start = _start("qwen3.6-27b-fp8", memory_fraction=0.95, context=8192)
    assert verdict.least_pool_bytes(start) > start.pool.need_bytes
    assert verdict.likeliest(start)[0] == "kv_too_small"
    assert verdict.likeliest(_start("qwen3.6-27b-fp8", memory_fraction=0.95, context=8192, max_seqs=256))[0] == "ok"


def test_headroom_outside_the_budget() -> None:
    start = _start("llama-3.1-8b", context=8192, memory_fraction=0.9)
    outside = start.ledger["cuda_graphs"].bytes + start.ledger["context"].bytes
    assert verdict.outside_headroom_bytes(start) == pytest.approx(0.1 * start.capacity_bytes - outside)
    tight = _start("llama-3.1-8b", context=8192, memory_fraction=1.0)
    assert verdict.stage_probabilities(tight)["oom_runtime"] > 0.3
