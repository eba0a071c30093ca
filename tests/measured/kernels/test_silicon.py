"""The formula corrected by measurements: they are met where they are, and forgotten far away."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.hardware import find
from trilemma.measured.kernels.models import blank, model_of
from trilemma.measured.kernels.silicon import measured_kernel, silicon_kernel
from trilemma.measured.kernels.tables import KernelRows
from trilemma.timing.kernels.formulas import parameters_of


def rows_at(m, n=4096.0, k=4096.0, seconds=1.0):
    m = np.asarray(m, dtype=float)
    shapes = {"m": m, "n": np.full(len(m), n), "k": np.full(len(m), k)}
    return KernelRows(
        kernel="gemm", accelerator="nvidia-h200-sxm", engine="vllm", version="1", dtype="bf16", shapes=shapes,
        seconds=np.full(len(m), seconds), sources=np.full(len(m), "one"), at=np.arange(len(m)),
    )  # fmt: skip


def test_measurements_are_met_interpolated_and_forgotten():
    measured = rows_at([16, 64, 256, 1024])
    c = blank(measured, {p.name: p.start for p in parameters_of("gemm") if p.required})
    formula = np.asarray(model_of("gemm").seconds(c, measured))
    slower = KernelRows(
        kernel="gemm", accelerator="nvidia-h200-sxm", engine="vllm", version="1", dtype="bf16",
        shapes=measured.shapes, seconds=formula * 1.5, sources=measured.sources, at=measured.at,
    )  # fmt: skip
    corrected = measured_kernel(slower, c, "made up")
    assert corrected.seconds(measured) == pytest.approx(slower.seconds, rel=1e-3)
    between = rows_at([32, 128, 512])
    ratio = corrected.seconds(between) / np.asarray(model_of("gemm").seconds(c, between))
    assert np.all((ratio > 1.2) & (ratio < 1.5))
    far = rows_at([131072])
    assert corrected.seconds(far) == pytest.approx(np.asarray(model_of("gemm").seconds(c, far)))


def test_without_a_table_the_reason_is_said():
    kernel, why = silicon_kernel(find("amd-mi300x"), "vllm", "gemm")
    assert kernel is None
    assert "no measured table" in str(why)
    kernel, why = silicon_kernel(find("nvidia-h200-sxm"), "vllm", "state_prefill")
    assert kernel is None
    assert "no measured table" in str(why)
