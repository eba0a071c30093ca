"""The time to the first token is a sum of named parts, and flags of a command reach the pass of its prompt."""

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
from trilemma.timing import Machine, model_work, serving_speed
from trilemma.timing.admission import Admission

LOADS = np.array([1.0, 3.0, 17.0, 200.0])


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
    work = model_work(stored("llama-3.1-70b", "fp8"), find("h100-sxm"))
    machine = Machine.serving(cluster(find("h100-sxm")), work=work, engine=engine)
    speed = serving_speed(
        work, machine, Layout(tp=8), isl=isl, osl=osl, concurrency=LOADS, kv_format=FP8, prefix_hit=prefix_hit,
        images_s=images_s, admission=Admission.of(slots), rate=rate,
    )  # fmt: skip
    parts = [np.broadcast_to(seconds, LOADS.shape) for seconds in speed.first_lines.values()]
    assert set(speed.first_lines) == {"request", "images", "prefill", "steps_waited", "prefills_ahead", "slot"}
    assert np.min(parts) >= -1e-12
    for at in range(len(LOADS)):
        assert math.fsum(part[at] for part in parts) == pytest.approx(float(speed.ttft_s[at]), rel=1e-9)


def test_the_micro_batch_of_a_command_reaches_the_pass_of_a_prompt():
    # llama.cpp, all on the card: -ub 64 reads the weights for every 64 rows, where the default does for 512
    def first_s(command: str) -> float:
        speed = tl.check(command, gpu="rtx-4090", isl=2048, osl=128, concurrency=1).speed
        assert speed is not None
        return float(speed.ttft_lines["prefill"])

    llama = "llama-server -hf bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M -ngl 99 -c 8192 -np 1"
    assert first_s(f"{llama} -ub 64") > 1.1 * first_s(llama)
    assert first_s(f"{llama} -ub 512") == pytest.approx(first_s(llama))
