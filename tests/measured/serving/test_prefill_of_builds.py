"""What builds and options of llama.cpp do to a prompt: micro-batches, cards one behind another, scores kept in memory."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.measured.serving.speed.benches import benches_of
from trilemma.measured.serving.speed.figures import predict
from trilemma.measured.serving.speed.question import SpeedQuestion, read_speed_question
from trilemma.measured.tables import Row
from trilemma.timing import Machine, model_work
from trilemma.timing.serving_terms import shipped


def question(**cells: str) -> SpeedQuestion:
    row = {
        "model": "llama-3.1-8b", "precision_weights": "q4_k_m", "gpu": "RTX A6000", "gpus": "1", "tp": "1", "engine": "llama.cpp",
        "isl": "512", "osl": "0", "concurrency_or_batch": "1", "metric": "prefill_tok_s", "value": "3781", "tier": "A",
    }  # fmt: skip
    return read_speed_question(Row(id="r", line=1, cells=row | cells), None)


def rate(**cells: str) -> float:
    bench = benches_of([question(**cells)])[0]
    return float(predict(bench, shipped().factors(bench.engine, bench.machine.accelerator, bench.precision))[0])


def test_old_builds_slow_down_with_length_as_they_were_measured_to():
    # XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024, 8B Q4_K_M on an RTX A6000: 3,781 tokens/s of 512, 2,293 of 8,192
    old, new = ([rate(isl=isl, version=build) for isl in ("512", "8192")] for build in ("May 2024 build", "b9000"))
    assert old[1] / old[0] == pytest.approx(2293 / 3781, rel=0.12)
    assert new[1] / new[0] > old[1] / old[0] + 0.1
    assert rate(isl="8192", version="b2900", notes="flash_attn=1") > 1.2 * old[1]


def test_micro_batches_follow_one_another_through_the_cards():
    # the same source, four A100: 6,077 tokens/s of 512, which no second card helps, 12,725 of 4,096
    four = {"gpu": "NVIDIA A100 80GB PCIe", "gpus": "4", "pp": "4"}
    short, long = (rate(isl=isl, **four) for isl in ("512", "4096"))
    assert short == pytest.approx(rate(isl="512", gpu=four["gpu"]), rel=0.03)
    assert (
        2.0 < long / rate(isl="4096", gpu=four["gpu"]) <= 8 * 4 / (8 + 4 - 1)
    )  # eight micro-batches in eleven turns of 32
    assert short == pytest.approx(6077, rel=0.25)
    assert long == pytest.approx(12725, rel=0.35)


def test_a_larger_micro_batch_reads_the_experts_less_often():
    cells = {
        "model": "qwen3-30b-a3b",
        "precision_weights": "q4_k_m",
        "gpu": "DGX Spark",
        "isl": "4096",
        "version": "b6918",
    }
    narrow, default, wide = (rate(notes=notes, **cells) for notes in ("-ub 128", "", "n_ubatch=2048"))
    assert narrow < default < wide


def test_rows_tell_depth_and_options():
    deep = question(isl="34816", notes="backend=rocm; flash_attn=True; depth=32768; ubatch=1024", version="b9187")
    assert (deep.isl, deep.cached) == (2048, 32768)
    assert dict(deep.kernels) == {"micro_batch_rows": 1024, "score_bytes": 0}
    assert rate(isl="34816", notes="depth=32768", version="b9187") < rate(isl="2048", version="b9187")
    assert dict(question(version="b6000").kernels) == {"score_bytes": 22}
    assert dict(question(version="b9000").kernels) == dict(question(version="39eab74a0").kernels) == {}
    assert dict(question(engine="vllm", notes="ubatch=64").kernels) == {}
    assert question().kernels == question(version="May 2024 build").kernels != ()


def test_answers_run_the_kernels_of_the_release_that_is_asked_for():
    asked = question()
    work = model_work(asked.model, asked.accelerator)
    cluster = benches_of([asked])[0].machine.cluster
    new, old = (Machine.serving(cluster, work=work, engine="llama.cpp", version=one) for one in (None, "b2900"))
    assert new.coefficients.score_bytes == 0 < old.coefficients.score_bytes
    assert new.multiplies_in_int8(4.5)
    assert not old.multiplies_in_int8(4.5)
    # FP16 with sums in FP16 runs at half the rate of INT8
    assert new.roof_flops("bf16", 4.5) == pytest.approx(2 * old.roof_flops("bf16", 4.5), rel=1e-9)
    assert np.isclose(new.coefficients.micro_batch_rows, 512)  # --ubatch-size
