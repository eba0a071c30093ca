"""Estimates of plans with weights outside the cards: refusals, error bars, what stays as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.serving import estimate
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.hardware.hosts import parse_host
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.question import Question
from trilemma.workloads import Serving

_LOAD = Serving(isl=512, osl=128, concurrency=1)


def _vllm(gib: float, gpu: str = "rtx-4090", layout: Layout | None = None, **options: object) -> Estimate:
    layout = layout or Layout()
    asked = ServeOptions(context=4096, max_seqs=1, cpu_offload_bytes=int(gib * 2**30), **options)  # type: ignore[arg-type]
    return estimate(
        Question(
            model=load_model("qwen3-14b"),
            cluster=Cluster(accelerator=find(gpu), gpus=int(layout.gpus), gpus_per_node=int(layout.gpus)),
            workload=_LOAD,
            plan=Plan(engine=EngineRef(name="vllm"), pools=(Pool(layout=layout, options=asked),)),
        )
    )


def _tpot(answer: Estimate) -> float:
    assert answer.speed is not None
    assert answer.speed.tpot_s is not None
    return answer.speed.tpot_s.interval.value


def test_pools_of_their_own_refuse_weights_on_the_host() -> None:
    options = ServeOptions(context=4096, cpu_offload_bytes=2**30)
    pools = (
        Pool(role="prefill", layout=Layout(), options=options),
        Pool(role="decode", layout=Layout(), options=replace(options, cpu_offload_bytes=0)),
    )
    with pytest.raises(InputError, match="one pool only"):
        estimate(
            Question(
                model=load_model("qwen3-8b"),
                cluster=Cluster(accelerator=find("h100-sxm"), gpus=2, gpus_per_node=2),
                workload=_LOAD,
                plan=Plan(engine=EngineRef(name="vllm"), pools=pools),
            )
        )


def test_more_offload_is_never_faster() -> None:
    seconds = [_tpot(_vllm(gib, gpu="l40s")) for gib in (0, 1, 4, 8, 16, 24)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 10 * seconds[0]


def test_each_rank_reads_its_own_part() -> None:
    """Four gibibytes on each of two ranks pass over two slots at once."""
    alone, both = _vllm(4, gpu="l40s"), _vllm(4, gpu="l40s", layout=Layout(tp=2))
    lines = [answer.speed.lines["host_weights"] for answer in (alone, both)]  # type: ignore[union-attr]
    assert lines[1] == pytest.approx(lines[0], rel=0.05)


def test_an_estimate_without_a_host_knows_none() -> None:
    speed = _vllm(0, gpu="l40s").speed
    assert speed is not None
    assert "host_weights" not in speed.lines


@pytest.mark.parametrize("host", ["DDR5-5600x2", None])
def test_bounds_hold_the_value_and_widen_with_doubt(host: str | None) -> None:
    options = ServeOptions(context=4096, max_seqs=1, extra={"n-cpu-moe": 28, "fit": "off"})
    answer = estimate(
        Question(
            model=load_model("gpt-oss-120b"),
            cluster=Cluster(
                accelerator=find("rtx-4090"), gpus=1, gpus_per_node=1, host=parse_host(host) if host else None
            ),
            workload=_LOAD,
            plan=Plan(engine=EngineRef(name="llama.cpp"), pools=(Pool(layout=Layout(), options=options),)),
        )
    )
    assert answer.speed is not None
    for figure in (answer.speed.tpot_s, answer.speed.ttft_s):
        assert figure is not None
        assert figure.interval.low < figure.interval.value < figure.interval.high
    bounds = answer.speed.tpot_s.interval  # type: ignore[union-attr]
    # a processor reaches 0.38 to 0.75 of its memory's bandwidth; which memory, twice or half as much
    assert bounds.high / bounds.low > (1.7 if host else 2.8)
