"""The measured backend over a folder laid out as the package lays out its tables."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.hardware import find
from trilemma.measured.kernels import silicon
from trilemma.measured.kernels.times import kernel_times
from trilemma.timing.step_kernels import KernelCall

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for version, latency in (("0.9.0", 9.0), ("0.24.0", 0.05)):
        where = tmp_path / "h200_sxm" / "gemm" / "vllm" / version
        where.mkdir(parents=True)
        n = 50
        table = {
            "op_name": ["gemm"] * n,
            "kernel_source": ["cublas"] * n,
            "gemm_dtype": ["bfloat16"] * n,
            "m": list(range(1, n + 1)),
            "n": [8192] * n,
            "k": [8192] * n,
            "latency": [latency] * n,
        }
        pq.write_table(pa.table(table), where / "gemm_perf.parquet")
    monkeypatch.setattr(silicon, "_data_folder", lambda: tmp_path)
    silicon._table.cache_clear()
    yield tmp_path
    silicon._table.cache_clear()


def test_the_newest_version_is_read_and_measured_shapes_are_met(folder):
    kernel, rung = silicon.silicon_kernel(find("nvidia-h200-sxm"), "vllm", "gemm")
    assert kernel is not None
    assert "0.24.0" in kernel.source
    assert "50 rows" in kernel.source
    (rows,) = silicon._table(folder, "nvidia-h200-sxm", "vllm", "gemm_perf.parquet")
    assert kernel.seconds(rows) == pytest.approx(np.full(50, 0.05e-3), rel=1e-3)
    assert str(rung)


def test_what_is_not_there_falls_back_and_says_so(folder):
    assert folder.is_dir()
    for card, engine, dtype in (
        ("nvidia-h200-sxm", "sglang", "bf16"),
        ("nvidia-h200-sxm", "vllm", "fp8"),
        ("nvidia-l4", "vllm", "bf16"),
    ):
        kernel, why = silicon.silicon_kernel(find(card), engine, "gemm", dtype)
        assert kernel is None
        assert "no measured table of gemm" in str(why)


def test_kernels_of_a_step_come_from_the_table_and_others_say_why_they_do_not(folder):
    assert folder.is_dir()
    product = KernelCall(
        line="dense", what="one", kernel="gemm", dtype="bf16", count=2, shapes={"m": 8.0, "n": 8192.0, "k": 8192.0}
    )
    other = KernelCall(
        line="dense", what="two", kernel="gemm", dtype="fp8", count=1, shapes={"m": 8.0, "n": 8192.0, "k": 8192.0}
    )
    measured, fallen = kernel_times([product, other], find("nvidia-h200-sxm"), "vllm", measured=True)
    assert measured.seconds == pytest.approx(0.05e-3, rel=0.02)
    assert measured.step_s == 2 * measured.seconds
    assert "0.24.0" in measured.source
    assert not measured.fallback
    assert "no measured table of gemm fp8" in fallen.fallback
    plain = kernel_times([other], find("nvidia-h200-sxm"), "vllm")[0]
    assert (fallen.seconds, fallen.source) == (plain.seconds, plain.source)
