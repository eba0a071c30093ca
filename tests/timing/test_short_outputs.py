"""Outputs of few tokens: prefill binds, and no more requests are answered than it lets through."""

from __future__ import annotations

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

_BATCHES = np.array([1, 2, 5, 16, 64, 128, 512])


def _speed(
    osl: int, *, isl: int = 4096, engine: str = "vllm", model: str = "llama-3.1-70b", **load
) -> tuple[ServingSpeed, Machine]:
    work = model_work(stored(model, "fp8"), find("h100-sxm"))
    machine = Machine.serving(cluster(find("h100-sxm")), work=work, engine=engine)
    asked = {"concurrency": _BATCHES, "isl": isl, "osl": osl, "kv_format": FP8} | load
    return serving_speed(work, machine, Layout(tp=2), **asked), machine


@settings(max_examples=60)
@given(
    osl=st.one_of(st.integers(min_value=1, max_value=16), st.integers(min_value=1, max_value=4096)),
    isl=st.sampled_from((128, 1024, 4096, 16384)),
    engine=st.sampled_from(("vllm", "sglang", "tensorrt-llm")),
    slots=st.sampled_from((8, 100, 1024)),
)
def test_no_more_is_answered_than_prefill_and_decode_have_time_for(osl, isl, engine, slots):
    speed, machine = _speed(osl, isl=isl, engine=engine, admission=Admission.of(slots))
    each_s = speed.prefill.total_s / np.clip(2048 // isl, 1, speed.running)
    share = np.minimum(machine.coefficients.interference, 1.0)
    requests_per_s = speed.output_tokens_per_s / osl
    steps_s = (osl - 1) * speed.step_s / speed.running
    together = np.clip(2048 // isl, 1, speed.running)
    mixed_s = each_s - speed.prefill.beside_s / together  # launched with the step that it is mixed into
    prefill_s = each_s / osl + (1 - 1 / osl) * share * mixed_s
    assert np.all(requests_per_s * (prefill_s + steps_s) <= 1 + 1e-9)
    peaks = machine.accelerator.peak_flops
    assert np.all(speed.mfu <= peaks["fp8"].value / peaks["bf16"].value)
    # Little's law: every request in flight is answered once a cycle
    cycle_s = np.maximum(_BATCHES, speed.running) / requests_per_s
    assert np.all(speed.ttft_s + (osl - 1) * speed.tpot_s >= cycle_s * (1 - 1e-9))


def test_prompts_alone_wait_for_all_before_them():
    speed, _ = _speed(1)
    several = _BATCHES >= 16
    wait_s = _BATCHES * speed.prefill.total_s
    assert speed.ttft_s[several] == pytest.approx(wait_s[several], rel=1e-9)
    assert speed.output_tokens_per_s[several] == pytest.approx(1 / speed.prefill.total_s[several], rel=1e-9)
    made = speed.output_tokens_per_s
    assert np.all(np.diff(made) >= -1e-12 * made[:-1])


def test_the_wait_for_prefill_is_booked_before_the_first_token():
    speed, _ = _speed(4, isl=8192)
    crowded = _BATCHES >= 64
    # no step takes more than one prompt of 8,192 tokens beside the decoding sequences
    assert np.all(speed.tpot_s[crowded] <= (speed.step_s + speed.prefill.total_s)[crowded])
    assert np.all(speed.ttft_s[crowded] > 10 * speed.tpot_s[crowded])


def test_long_outputs_are_as_fitted():
    speed, machine = _speed(1024, concurrency=64)
    interference = machine.coefficients.interference
    mixed_s = (speed.prefill.total_s - speed.prefill.beside_s) * interference
    assert 0.1e-3 < speed.prefill.beside_s < 0.2 * speed.prefill.total_s
    assert speed.tpot_s == pytest.approx(speed.step_s + 63 / 1024 * mixed_s, rel=1e-9)
    assert sum(speed.first_lines.values()) == pytest.approx(float(speed.ttft_s), rel=1e-9)


@pytest.mark.parametrize("rate", [1.0, 1000.0])
def test_a_rate_beyond_prefill_is_not_carried(rate):
    speed, _ = _speed(1, concurrency=512, rate=rate)
    assert float(speed.output_tokens_per_s) <= min(rate, 1 / float(speed.prefill.total_s)) * (1 + 1e-9)


@pytest.mark.parametrize("prefix_hit", [0.0, 0.5])
def test_the_last_token_is_put_out_and_passed_through_nothing(prefix_hit):
    """Two tokens after 64 or 128 of prompt: 65 or 129 pass through the layers, and no card multiplies faster than its peak."""
    said = tl.fit(
        "llama-2-13b", "rtx-5090", engine="tensorrt-llm", isl=128, osl=2, concurrency=64, prefix_hit=prefix_hit
    )
    assert 0.9 < said.speed.mfu.value <= said.speed.mfu.high <= 1.0
