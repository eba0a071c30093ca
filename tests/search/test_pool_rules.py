"""Pools that an engine cannot join are not proposed, and are counted."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout
from trilemma.search import Constraints, search_serving
from trilemma.search.pool_rules import equal_ranks, pairs_refused
from trilemma.workloads import Serving

VLLM, SGLANG, TENSORRT = (EngineRef(name=name) for name in ("vllm", "sglang", "tensorrt-llm"))


def _pools(engine, model="qwen3-235b-a22b", *, gpus=8, fixed=None, **load):
    result = search_serving(
        load_model(model), Cluster.of(find("h200-sxm"), gpus), Serving(isl=4096, osl=1024, **load), engine=engine,
        pools="disaggregated", top=20, front=20, precision=["fp8"], kv_dtype=["auto"], fixed=fixed,
    )  # fmt: skip
    return result, [tuple(pool.layout for pool in found.plan.pools) for found in result.plans]


@pytest.mark.slow
@pytest.mark.parametrize("load", [{"tpot_ms": 40}, {"concurrency": 64}, {"rate": 1.0}])
def test_pipeline_stages_are_no_pools_of_vllm(load):
    result, pairs = _pools(VLLM, "llama-3.1-70b", **load)
    assert pairs
    assert all(side.pp == 1 for pair in pairs for side in pair)
    assert any("pipeline stages" in why for why in result.rejected)
    _, elsewhere = _pools(TENSORRT, "llama-3.1-70b", fixed=Constraints(pp=2), **load)
    assert all(side.pp == 2 for pair in elsewhere for side in pair)


@pytest.mark.slow
@pytest.mark.parametrize("load", [{"tpot_ms": 40}, {"concurrency": 64}])
@pytest.mark.parametrize(
    ("engine", "model"), [(VLLM, "nemotron-h-56b"), (SGLANG, "gemma-3-27b"), (SGLANG, "gpt-oss-120b")]
)
def test_models_that_keep_states_or_windows_have_pools_of_equal_ranks(engine, model, load):
    assert equal_ranks(engine, load_model(model))
    _, pairs = _pools(engine, model, **load)
    assert all(prefill.tp == decode.tp for prefill, decode in pairs)


def test_vllm_does_not_narrow_below_the_kv_heads():
    model, tp = load_model("qwen3-235b-a22b"), np.array([2, 4, 8])  # four KV heads
    (refused,) = pairs_refused(VLLM, model, Layout(tp=tp), Layout(tp=np.array([1, 2, 4]))).values()
    assert refused.tolist() == [False, False, True]
    latent = pairs_refused(VLLM, load_model("deepseek-v3"), Layout(tp=tp), Layout(tp=np.array([1, 2, 4])))
    assert not any(refused.any() for refused in latent.values())


@pytest.mark.parametrize(("version", "good"), [(None, [True, True, False]), ("0.5.7", [True, False, False])])
def test_sglang_takes_caches_into_one_stage_or_as_many(version, good):
    engine = EngineRef(name="sglang", version=version)
    pairs = Layout(pp=np.array([2, 2, 1])), Layout(pp=np.array([1, 2, 2]))
    (refused,) = pairs_refused(engine, load_model("llama-3.1-70b"), *pairs).values()
    assert (~refused).tolist() == good
