"""The time to the first token is a sum of named parts, and its own pass is no shorter than the host takes to launch it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_serving_properties import stored
from timing_cases import FP8, cluster

import trilemma as tl
from trilemma.hardware.catalogue import find
from trilemma.plans import Layout
from trilemma.timing import Machine, ServingSpeed, model_work, serving_speed
from trilemma.timing.admission import Admission
from trilemma.timing.launching import launched_kernels, launching_s

LOADS = np.array([1.0, 3.0, 17.0, 200.0])


def machine_of(engine: str, *, model: str = "llama-3.1-70b", gpu: str = "h100-sxm", **options: bool) -> Machine:
    work = model_work(stored(model, "fp8"), find(gpu))
    return Machine.serving(cluster(find(gpu)), work=work, engine=engine, **options)


def answer(engine: str, *, isl: int, tp: int = 8, eager: bool = False, **asked: object) -> tuple[ServingSpeed, Machine]:
    machine = machine_of(engine, eager=eager)
    work = model_work(stored("llama-3.1-70b", "fp8"), machine.accelerator)
    load = {"concurrency": LOADS, "osl": 512, "kv_format": FP8} | asked
    return serving_speed(work, machine, Layout(tp=tp), isl=isl, **load), machine


@settings(max_examples=40, deadline=None)
@given(
    engine=st.sampled_from(("vllm", "sglang", "tensorrt-llm")),
    isl=st.sampled_from((16, 500, 900, 7000, 30_000)),
    osl=st.sampled_from((1, 64, 4000)),
    prefix_hit=st.sampled_from((0.0, 0.7)),
    images_s=st.sampled_from((0.0, 0.05)),
    slots=st.sampled_from((2, 64, 10_000)),
    rate=st.sampled_from((None, 0.5)),
)
def test_parts_add_up_and_none_is_negative(engine, isl, osl, prefix_hit, images_s, slots, rate):
    speed, _ = answer(
        engine, isl=isl, osl=osl, prefix_hit=prefix_hit, images_s=images_s, admission=Admission.of(slots), rate=rate
    )
    parts = [np.broadcast_to(seconds, LOADS.shape) for seconds in speed.first_lines.values()]
    assert set(speed.first_lines) == {"request", "images", "prefill", "steps_waited", "prefills_ahead", "slot"}
    assert np.min(parts) >= -1e-12
    for at in range(len(LOADS)):
        assert math.fsum(part[at] for part in parts) == pytest.approx(float(speed.ttft_s[at]), rel=1e-9)


def test_nobody_waits_less_than_the_host_takes_to_launch_the_own_pass():
    speed, machine = answer("sglang", isl=64)
    work = model_work(stored("llama-3.1-70b", "fp8"), machine.accelerator)
    launched_s = launched_kernels(work) * machine.coefficients.prompt_launch_s
    assert launched_kernels(work) == work.kernels + 80
    assert speed.first_lines["prefill"] == pytest.approx(launched_s)
    # a step that decodes is replayed from a graph: the same kernels again, in less time
    assert np.all(speed.step_s[:2] < launched_s)


def test_a_graph_replays_prompts_up_to_its_size():
    # vllm/config/vllm.py: max_cudagraph_capture_size = min(max_num_seqs * 2, 512)
    replayed, beyond = (float(answer("vllm", isl=isl)[0].first_lines["prefill"]) for isl in (512, 513))
    assert beyond > 1.3 * replayed
    eager = float(answer("vllm", isl=512, eager=True)[0].first_lines["prefill"])
    assert eager == pytest.approx(beyond)
    # long prompts take the cards longer than the host
    speed, machine = answer("vllm", isl=30_000)
    work = model_work(stored("llama-3.1-70b", "fp8"), machine.accelerator)
    assert float(speed.first_lines["prefill"]) == pytest.approx(float(np.max(speed.prefill.total_s)))
    assert float(launching_s(machine, work, 30_000)) < float(np.max(speed.prefill.total_s))


def test_more_ranks_shorten_long_prompts_and_no_short_ones_below_their_launches():
    short, long = (
        [float(answer("sglang", isl=isl, tp=tp)[0].first_lines["prefill"]) for tp in (1, 2, 4, 8)]
        for isl in (200, 30_000)
    )
    assert long == sorted(long, reverse=True)
    assert long[0] > 3 * long[3]
    assert short[2] == pytest.approx(short[3])


def test_a_machine_at_its_datasheet_launches_nothing():
    machine = machine_of("sglang").at_datasheet()
    work = model_work(stored("llama-3.1-70b", "fp8"), machine.accelerator)
    assert float(launching_s(machine, work, 64)) == 0.0


def test_flags_of_a_command_reach_the_pass_of_a_prompt():
    # vLLM: --max-cudagraph-capture-size 2048 replays a prompt of 1,000 tokens that the default of 512 does not
    # llama.cpp, all on the card: -ub 64 reads the weights for every 64 rows, where the default does for 512
    def first_s(command: str, gpu: str, isl: int) -> float:
        speed = tl.check(command, gpu=gpu, isl=isl, osl=128, concurrency=1).speed
        assert speed is not None
        return float(speed.ttft_lines["prefill"])

    serve = "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 8"
    most = f"{serve} --max-cudagraph-capture-size 2048"
    assert first_s(most, "b200-sxm:8", 600) < 0.95 * first_s(serve, "b200-sxm:8", 600)
    assert first_s(most, "b200-sxm:8", 500) == pytest.approx(first_s(serve, "b200-sxm:8", 500))
    llama = "llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M -ngl 99 -c 8192 -np 1"
    assert first_s(f"{llama} -ub 64", "rtx-4090", 2048) > 1.1 * first_s(llama, "rtx-4090", 2048)
