"""Rooflines: ridge points of datasheets, joins of compute and memory, which units multiply which weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timing_cases import BF16, FP8, INT4, MXFP4, NVFP4, card, figure

from trilemma.errors import InputError
from trilemma.formats import catalogue
from trilemma.timing import operator_time_s, peak_flops, ridge_flops_per_byte

MXFP6 = catalogue.get("mxfp6")
positive = st.floats(1e3, 1e15)


def test_ridge_of_h100_sxm():
    # 989.4 TFLOP/s over 3.35 TB/s (NVIDIA H100 datasheet): a BF16 product needs 295 FLOPs per byte to be compute bound
    assert ridge_flops_per_byte(card(), "bf16") == pytest.approx(295, abs=0.5)


def test_roofline_is_the_larger_of_both():
    assert operator_time_s(2e12, 1e9, flops_per_s=1e15, bytes_per_s=1e12) == pytest.approx(2e-3)
    assert operator_time_s(2e12, 8e9, flops_per_s=1e15, bytes_per_s=1e12) == pytest.approx(8e-3)


@given(flops=positive, traffic=positive, peak=positive, bandwidth=positive, power=st.floats(1.5, 8))
def test_join_lies_between_the_bounds(flops, traffic, peak, bandwidth, power):
    compute, memory = flops / peak, traffic / bandwidth
    seconds = operator_time_s(flops, traffic, flops_per_s=peak, bytes_per_s=bandwidth, power=power)
    assert max(compute, memory) * (1 - 1e-9) <= seconds <= (compute + memory) * (1 + 1e-9)


@given(flops=positive, traffic=positive, peak=positive, bandwidth=positive, more=st.floats(1, 100))
def test_a_better_card_is_never_slower(flops, traffic, peak, bandwidth, more):
    base = operator_time_s(flops, traffic, flops_per_s=peak, bytes_per_s=bandwidth, power=3.0)
    assert operator_time_s(flops, traffic, flops_per_s=peak * more, bytes_per_s=bandwidth, power=3.0) <= base * (
        1 + 1e-9
    )
    assert operator_time_s(flops, traffic, flops_per_s=peak, bytes_per_s=bandwidth * more, power=3.0) <= base * (
        1 + 1e-9
    )


def test_no_work_takes_no_time():
    assert operator_time_s(0.0, 0.0, flops_per_s=1e15, bytes_per_s=1e12, power=3.0) == 0.0


def test_arrays_equal_scalars():
    flops, traffic = np.array([1e9, 1e12, 1e13]), np.array([1e9, 1e8, 1e10])
    together = operator_time_s(flops, traffic, flops_per_s=1e15, bytes_per_s=1e12, power=3.0)
    alone = [
        operator_time_s(f, t, flops_per_s=1e15, bytes_per_s=1e12, power=3.0)
        for f, t in zip(flops, traffic, strict=True)
    ]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(
    ("stored", "units", "bits", "computed_in"),
    [
        (BF16, ("bf16",), None, "bf16"),
        (FP8, ("bf16", "fp8"), None, "fp8"),
        (FP8, ("bf16",), None, "bf16"),  # Ampere: weights are widened
        (FP8, ("bf16", "fp8"), 16, "bf16"),  # weight-only checkpoint
        (INT4, ("bf16", "fp8", "int4"), None, "bf16"),
        (NVFP4, ("bf16", "fp8"), 4, "bf16"),  # Hopper has no FP4 units
        (NVFP4, ("bf16", "fp8", "nvfp4"), 4, "nvfp4"),
        (MXFP4, ("bf16", "fp8"), None, "bf16"),
        (MXFP4, ("bf16", "fp8", "mxfp4"), None, "fp8"),
        (MXFP4, ("bf16", "fp8", "mxfp4"), 4, "mxfp4"),
        (MXFP6, ("bf16", "fp8"), None, "bf16"),
        (MXFP6, ("bf16", "fp8", "mxfp8", "mxfp6"), None, "mxfp6"),
        (MXFP6, ("bf16", "fp8", "mxfp8", "mxfp6"), 8, "fp8"),
        (MXFP6, ("bf16", "fp8", "mxfp8"), None, "fp8"),  # the next wider units of its kind
        (MXFP6, ("bf16", "fp8", "mxfp8", "mxfp6"), 16, "bf16"),
        (catalogue.get("int8_channel"), ("bf16", "int8"), 8, "int8"),
        (catalogue.get("int8_g128"), ("bf16", "int8"), None, "bf16"),
        (catalogue.get("nf4"), ("bf16", "int4"), None, "bf16"),
    ],
)  # fmt: skip
def test_units_that_multiply(stored, units, bits, computed_in):
    accelerator = replace(card(), hardware_formats=units)
    assert stored.computes_in(accelerator, activation_bits=bits) == computed_in


def test_missing_peaks_fall_back_and_say_so_when_they_cannot():
    ampere = replace(card(), peak_flops={"bf16": figure(312e12)})
    assert peak_flops(ampere, "fp8") == 312e12
    assert peak_flops(replace(card(), peak_flops={"fp16": figure(125e12)}), "bf16") == 125e12
    with pytest.raises(InputError, match=r"card states no peak for bf16.*add peak_flops\.bf16"):
        peak_flops(replace(card(), peak_flops={"fp64": figure(1e12)}), "bf16")
