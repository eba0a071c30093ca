"""Kernel tables from outside: what is read, what is not believed, and how broken files are refused."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.cli.main import main
from trilemma.errors import InputError
from trilemma.measured.kernels.tables import read_kernel_tables

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


def gemm_columns(n=60, **changed):
    rng = np.random.default_rng(1)
    columns = {
        "framework": ["VLLM"] * n,
        "op_name": ["gemm"] * n,
        "kernel_source": ["cublas"] * n,
        "gemm_dtype": ["bfloat16"] * n,
        "m": rng.integers(1, 512, n).tolist(),
        "n": (rng.integers(2, 32, n) * 256).tolist(),
        "k": (rng.integers(2, 32, n) * 256).tolist(),
        "latency": (0.02 + 0.05 * rng.random(n)).tolist(),
        "gpu": ["h200_sxm"] * n,
        "engine": ["vllm"] * n,
        "engine_version": ["0.24.0"] * n,
    }
    return columns | changed


def test_milliseconds_become_seconds_under_the_names_of_the_catalogue(tmp_path):
    tables = read_kernel_tables([write(tmp_path / "t.parquet", **gemm_columns())])
    (rows,) = tables.groups
    assert (rows.kernel, rows.accelerator, rows.dtype) == ("gemm", "nvidia-h200-sxm", "bf16")
    assert 0.02e-3 <= rows.seconds.min() <= rows.seconds.max() <= 0.07e-3


def test_messages_are_elements_not_bytes(tmp_path):
    path = write(
        tmp_path / "t.parquet",
        op_name=["all_reduce"] * 2, nccl_dtype=["half", "int8"], num_gpus=[8, 8], message_size=[1024, 1024],
        latency=[0.01, 0.01], gpu=["h100_sxm"] * 2, engine=["nccl"] * 2, engine_version=["2.29.2"] * 2,
    )  # fmt: skip
    (rows,) = read_kernel_tables([path]).groups
    assert sorted(rows.shapes["n_bytes"].tolist()) == [1024.0, 2048.0]


def test_rows_that_no_card_can_have_produced_are_counted_and_left_out(tmp_path):
    columns = gemm_columns(n=6)
    columns["m"], columns["n"], columns["k"] = [8192] * 6, [8192] * 6, [8192] * 6
    columns["latency"] = [1.6, 1.5, 0.001, -1.0, float("nan"), 0.0]
    tables = read_kernel_tables([write(tmp_path / "t.parquet", **columns)])
    assert tables.left_out["faster than the bandwidth or the peak of the card"] == 1
    assert tables.left_out["not a positive, finite latency and shape"] == 3
    assert tables.groups[0].seconds.tolist() == pytest.approx([1.55e-3])  # repeats of one shape: their median


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"gemm_dtype": ["fp8_block"] * 60}, "timed eagerly"),
        ({"gpu": ["b300_sxm"] * 60, "engine": ["sglang"] * 60, "engine_version": ["0.5.14"] * 60}, "copied"),
        ({"gpu": ["a card of mine"] * 60}, "is not known"),
        ({"gemm_dtype": ["int3"] * 60}, "is not known"),
        ({"op_name": ["conv3d"] * 60}, "has no formula"),
    ],
)
def test_tables_that_are_not_believed_are_left_out_by_name(tmp_path, changed, why):
    tables = read_kernel_tables([write(tmp_path / "t.parquet", **gemm_columns(**changed))])
    assert tables.groups == []
    assert any(why in reason and rows == 60 for reason, rows in tables.left_out.items())


def test_broken_files_are_refused_in_one_line(tmp_path, capsys):
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1 and then nothing")
    missing = gemm_columns()
    del missing["k"]
    nameless = gemm_columns()
    del nameless["gpu"]
    for path, word in (
        (str(torn), "parquet"),
        (str(tmp_path / "none.parquet"), "no such file"),
        (write(tmp_path / "k.parquet", **missing), "'k'"),
        (write(tmp_path / "g.parquet", **nameless), "'gpu'"),
        (write(tmp_path / "l.parquet", **gemm_columns(latency=["fast"] * 60)), "'latency'"),
    ):
        with pytest.raises(InputError, match=word):
            read_kernel_tables([path])
        assert main(["calibrate", "kernels", path]) == 2
        error = capsys.readouterr().err
        assert error.startswith("trilemma: ")
        assert len(error.splitlines()) == 1


def test_a_table_is_calibrated_and_written(tmp_path, capsys):
    path = write(tmp_path / "t.parquet", **gemm_columns(n=200))
    out = tmp_path / "out"
    assert main(["calibrate", "kernels", path, "--out", str(out), "--quiet"]) in (0, 1)
    assert "GEMM bf16" in capsys.readouterr().out
    first = (out / "nvidia-h200-sxm.json").read_bytes()
    main(["calibrate", "kernels", path, "--out", str(out), "--quiet"])
    assert (out / "nvidia-h200-sxm.json").read_bytes() == first
    assert (out / "ladder.json").is_file()


def test_a_parquet_table_is_validated_with_the_shipped_coefficients(tmp_path, capsys):
    path = write(tmp_path / "t.parquet", **gemm_columns())
    assert main(["validate", path]) == 0
    printed = capsys.readouterr().out
    assert "gemm_us" in printed
    assert "60 of 60 rows judged" in printed
    assert main(["validate", path, "--holdout", "gpu"]) == 2
    assert "calibrate kernels" in capsys.readouterr().err
