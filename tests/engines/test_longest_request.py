"""What a pool has room for means the same under every engine, and no budget is larger than its card."""

from __future__ import annotations

import pytest

from trilemma.estimate.serving import estimate
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.question import Question
from trilemma.workloads import Serving


def answer(engine: str, model: str, gpu: str, context: int):
    plan = Plan(engine=EngineRef(name=engine), pools=(Pool(layout=Layout(), options=ServeOptions(context=context)),))
    return estimate(
        Question(
            model=load_model(model), cluster=Cluster.of(find(gpu), 1), workload=Serving(isl=512, osl=128), plan=plan
        )
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_longest_request_is_bounded_by_pool_and_model_whatever_length_is_admitted(engine: str) -> None:
    model = load_model("qwen3-8b")
    short, long = (answer(engine, "qwen3-8b", "h100-sxm", context).cache for context in (2048, 5120))
    assert short is not None
    assert long is not None
    assert short.max_context == long.max_context == model.max_positions
    small = answer(engine, "qwen3-8b", "rtx-4090", 2048).cache
    assert small is not None
    assert 2048 < small.max_context < (model.max_positions or 0)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "transformers"])
def test_budget_of_weights_beyond_the_card_stays_on_the_card(engine: str) -> None:
    memory = answer(engine, "qwen3-32b", "rtx-4090", 2048).memory
    assert memory.usable_bytes <= memory.capacity_bytes
    assert memory.total.value > memory.capacity_bytes
