"""Kernel tables of our own form (CSV, microseconds) judged row by row."""

from __future__ import annotations

from trilemma.cli.main import main
from trilemma.measured.kernels.judge import judge
from trilemma.measured.tables import read_table

TABLE = """id,gpu,engine,version,op,dtype,m,n,k,latency_us
a,H200 SXM,vllm,0.24.0,gemm,bf16,8192,8192,8192,1500
b,nvidia-h200-sxm,vllm,0.24.0,gemm,bf16,1,8192,8192,35
c,nvidia-h200-sxm,vllm,0.24.0,gemm,bf16,1,8192,8192,-3
d,no such card,vllm,0.24.0,gemm,bf16,1,8192,8192,35
e,amd-mi300x,vllm,0.24.0,gemm,bf16,8192,8192,8192,1500
"""


def test_rows_are_judged_by_the_rung_that_they_stand_on(tmp_path):
    path = tmp_path / "kernels.csv"
    path.write_text(TABLE)
    judgements, _ = judge(read_table(path).rows)
    by_id = {judgement.row_id: judgement for judgement in judgements}
    assert {name for name, judgement in by_id.items() if judgement.used} == {"a", "b", "e"}
    assert by_id["a"].classes["rung"] == "measured"
    assert by_id["e"].classes["rung"] == "spec sheet"
    (figure,) = by_id["a"].comparisons
    assert figure.metric == "gemm_us"
    assert figure.low <= figure.predicted <= figure.high
    assert 1000 <= figure.predicted <= 2000
    assert "finite" in by_id["c"].skipped
    assert "is not known" in by_id["d"].skipped


def test_the_command_prints_the_errors_and_takes_bars(tmp_path, capsys):
    path = tmp_path / "kernels.csv"
    path.write_text(TABLE)
    assert main(["validate", str(path), "--require", "gemm_us.mape<=60%"]) == 0
    assert "gemm_us" in capsys.readouterr().out
    assert main(["validate", str(path), "--require", "gemm_us.mape<=0.01%"]) == 1
