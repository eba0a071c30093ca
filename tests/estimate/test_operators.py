"""Operators of an estimate: they sum to the time per token, name what binds them and say where their seconds come from."""

from __future__ import annotations

import math
from functools import cache

import pytest

from trilemma.estimate.estimate import Estimate
from trilemma.estimate.serving import estimate
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Draft, EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.question import Question
from trilemma.workloads import Serving


@cache
def answer(
    name: str, gpu: str, gpus: int, *, engine: str = "vllm", many: int = 64, draft: Draft | None = None
) -> Estimate:
    pool = Pool(layout=Layout(tp=gpus), options=ServeOptions(context=5120), draft=draft)
    return estimate(
        Question(
            model=load_model(name),
            cluster=Cluster.of(find(gpu), gpus),
            workload=Serving(isl=4096, osl=1024, concurrency=many),
            plan=Plan(engine=EngineRef(name=engine), pools=(pool,)),
        )
    )


CASES = [
    ("llama-3.1-70b", "h200-sxm", 8, "vllm"),
    ("deepseek-v3", "b200-sxm", 8, "sglang"),
    ("gpt-oss-120b", "h100-sxm", 2, "tensorrt-llm"),
    ("qwen3-32b", "mi300x", 1, "vllm"),
    ("llama-3.1-8b", "rtx-5090", 1, "vllm"),
]


@pytest.mark.parametrize(("name", "gpu", "gpus", "engine"), CASES)
def test_operators_sum_to_tpot_and_the_first_lines_to_ttft(name: str, gpu: str, gpus: int, engine: str) -> None:
    speed = answer(name, gpu, gpus, engine=engine).speed
    assert speed is not None
    assert speed.tpot_s is not None
    assert speed.ttft_s is not None
    assert math.fsum(line.seconds for line in speed.operators) == pytest.approx(speed.tpot_s.interval.value, rel=1e-12)
    assert math.fsum(line.share for line in speed.operators) == pytest.approx(1.0, rel=1e-12)
    assert math.fsum(speed.ttft_lines.values()) == pytest.approx(speed.ttft_s.interval.value, rel=1e-12)
    assert {line.name: line.seconds for line in speed.operators} == {
        name: seconds for name, seconds in speed.lines.items() if seconds > 0
    }


@pytest.mark.parametrize(("name", "gpu", "gpus", "engine"), CASES)
def test_lines_without_work_have_no_roof_and_the_others_name_theirs(
    name: str, gpu: str, gpus: int, engine: str
) -> None:
    speed = answer(name, gpu, gpus, engine=engine).speed
    assert speed is not None
    card = find(gpu)
    for line in speed.operators:
        assert (line.roof_s is None) == (line.name in ("kernels", "host")), line.name
        assert (line.bound_by == "host") == (line.roof_s is None)
        if line.computed_in is not None:
            assert line.computed_in in card.peak_flops
            assert line.flops is not None
            assert line.bytes is not None
            # the roof holds the whole line: no less than all its bytes at the datasheet's bandwidth
            assert line.roof_s is not None
            assert line.roof_s >= line.bytes / card.bandwidth_bytes_per_s.value * (
                0.5 if line.name == "prefill" else 1 - 1e-9
            )


def test_where_the_seconds_come_from_is_said() -> None:
    tags = {case: {line.source for line in answer(*case[:3], engine=case[3]).speed.operators} for case in CASES}  # type: ignore[union-attr]
    assert tags[CASES[1]] == {"fitted: sglang nvidia-b200-sxm-180gb 8-bit fp8"}
    assert tags[CASES[3]] == {"spec sheet"}
    assert tags[CASES[4]] == {"carried over: vllm nvidia-rtx-5090 16-bit bf16"}


def test_drafts_are_a_line_of_their_own() -> None:
    speed = answer("deepseek-v3", "h200-sxm", 8, draft=Draft(method="mtp", tokens=1, acceptance=0.8)).speed
    assert speed is not None
    assert speed.tpot_s is not None
    assert "draft" in {line.name for line in speed.operators}
    assert math.fsum(line.seconds for line in speed.operators) == pytest.approx(speed.tpot_s.interval.value, rel=1e-12)
