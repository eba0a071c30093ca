"""A search for llama.cpp: GGUF mixes, its own cache formats, slots, cards in turn."""

from __future__ import annotations

import pytest

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef
from trilemma.search import search_serving
from trilemma.workloads import Serving


def _search(model, gpu, gpus=1, *, engine="llama.cpp", **load):
    return search_serving(
        load_model(model), Cluster.of(find(gpu), gpus), Serving(isl=4096, osl=1024, **load), top=10,
        engine=EngineRef(name=engine),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["l40s", "rtx-4090", "rtx-5090", "apple-m2-ultra-192gb"])
def test_a_quantised_model_is_found_for_one_reader(gpu):
    result = _search("qwen3-32b", gpu, concurrency=1)
    assert result.plans
    best = result.plans[0]
    assert best.precision.model.quantization.method == "gguf"
    command = best.estimate.command
    assert command.startswith("llama-server --model ./Qwen3-32B-Q")
    assert "--parallel 1" in command
    assert all(found.kv_format in ("fp16", "q8_0") for found in result.plans)
    assert all(found.estimate.fits for found in result.plans)


def test_several_readers_get_slots_and_room_for_each():
    result = _search("qwen3-32b", "l40s", concurrency=4)
    best = result.plans[0]
    assert best.plan.pool.options.max_seqs == 4
    assert "--ctx-size 20480 --parallel 4" in best.estimate.command
    assert best.estimate.speed.batch == 4
    alone = _search("qwen3-32b", "l40s", concurrency=1).plans[0].estimate.speed
    assert best.estimate.speed.output_tokens_per_s.value > alone.output_tokens_per_s.value


def test_engines_stand_side_by_side_on_several_cards():
    layouts = [found.plan.pool for found in _search("llama-3.1-8b", "rtx-4090", 2, concurrency=8).plans]
    assert any(pool.replicas == 2 and pool.options.max_seqs == 4 for pool in layouts)
    assert all(pool.layout.dp == 1 for pool in layouts)


def test_rows_of_experts_are_not_split():
    result = _search("gpt-oss-120b", "rtx-4090", 4)
    assert result.plans
    assert all(found.plan.pool.layout.tp == 1 for found in result.plans)
    assert any("no experts by rows" in why for why in result.rejected)
    assert max(found.requests for found in result.plans) > 1


@pytest.mark.slow
def test_the_table_and_the_single_plan_agree():
    for found in _search("qwen3-32b", "l40s", 2, tpot_ms=60).plans:
        assert found.estimate.speed.batch * found.plan.pool.replicas == found.requests
        assert found.estimate.speed.tpot_s.interval.value <= 0.060
        assert found.precision.quality
