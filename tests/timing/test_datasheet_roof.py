"""The roof of a line is the same pass at the datasheet: nothing that kernels lose is in it, and no spec-sheet pass beats it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from timing_cases import BF16, FP8, card, cluster, llama_70b, mixture

from trilemma.plans import Layout
from trilemma.timing import Machine, decode_step, model_work, prefill_pass, serving_speed
from trilemma.timing.coefficients import at_datasheet

CARDS = [card(), card(capability=12.0), card(link=None), replace(card(), vendor="AMD", compute_capability=None)]
LAYOUT = Layout(tp=np.array([1, 2, 8, 8, 4]), pp=np.array([1, 4, 1, 2, 2]), dp=np.array([8, 1, 1, 1, 1]))


@pytest.mark.parametrize("accelerator", CARDS, ids=["hopper", "workstation", "no link", "unmeasured"])
@pytest.mark.parametrize("model", [llama_70b(), llama_70b(FP8), mixture()], ids=["dense", "fp8", "experts"])
def test_no_line_of_a_spec_sheet_pass_beats_its_roof(model, accelerator):
    machine, work = Machine.of(cluster(accelerator, gpus=16)), model_work(model, accelerator)
    for batch in (1, 16, 512):
        load = {"concurrency": batch, "isl": 2048, "osl": 256, "kv_format": BF16}
        taken = serving_speed(work, machine, LAYOUT, **load)
        roof = serving_speed(work, machine.at_datasheet(), LAYOUT, **load)
        for name, seconds in taken.lines.items():
            assert np.all(roof.lines[name] <= seconds * (1 + 1e-12)), name
        np.testing.assert_array_equal(roof.lines["host"] + roof.lines["kernels"], 0.0)


def test_roof_is_the_larger_of_peak_and_bandwidth_time():
    work, machine = model_work(llama_70b(), card()), Machine.of(cluster())
    step = decode_step(work, machine.at_datasheet(), Layout(tp=8), batch=32, context=1000, kv_format=BF16)
    assert {one.line for one in step.works} == {"dense", "attention", "lm_head"}
    for line in ("dense", "attention", "lm_head"):
        flops, moved = (
            sum(float(getattr(one.work, name)) * float(one.repeats) for one in step.works if one.line == line)
            for name in ("flops", "bytes")
        )
        assert float(step.lines[line]) == pytest.approx(max(flops / 989.4e12, moved / 3.35e12), rel=1e-12)
    # 64 sequences of 160 KiB of partial sums twice a layer: ring volumes over 450 GB/s one way, no latency
    sums = 32 * 8192 * 2 * 160
    gathered = 7 * 32 * 32000 / 8 * 2
    assert float(step.lines["all_reduce"]) == pytest.approx((sums * 2 * 7 / 8 + gathered) / 450e9, rel=1e-12)


def test_work_of_a_prefill_is_two_flops_per_weight_and_token():
    step = prefill_pass(
        model_work(llama_70b(), card()), Machine.of(cluster()), Layout(tp=8), tokens=4096, cached=0, kv_format=BF16
    )
    dense = sum(float(one.work.flops) for one in step.works if one.line == "dense")
    assert dense == pytest.approx(2 * (68.977e9 - 2 * 32000 * 8192) * 4096 / 8, rel=0.01)


def test_overlap_of_prefills_is_work_and_their_interference_a_loss():
    plain = Machine.of(cluster()).coefficients
    for fitted, left in ((0.7, 0.7), (1.3, 1.0)):
        assert at_datasheet(plain.with_numbers(interference=fitted)).interference == left
