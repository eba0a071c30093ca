"""Fits of kernels: made-up measurements give back what made them, and equal input gives equal output."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from trilemma.measured.bounded_fit import fit_log_ratio
from trilemma.measured.kernels.calibration import KernelFits, calibrate, card_document, ladder_document
from trilemma.measured.kernels.fit import fit_kernel, held_out_ratio, hold_out, predict
from trilemma.measured.kernels.models import blank, model_of
from trilemma.measured.kernels.report import lines
from trilemma.measured.kernels.tables import KernelRows, KernelTables
from trilemma.report.kernel_fits import render_lines
from trilemma.timing.kernels.formulas import parameters_of


def made_up(kernel="gemm", accelerator="nvidia-h200-sxm", engine="vllm", dtype="bf16", noise=0.03, **changed):
    """Rows of a kernel whose coefficients are the starts of its parameters, ``changed`` aside."""
    rng = np.random.default_rng(3)
    n = 400
    shapes = {
        "gemm": {
            "m": 2.0 ** rng.integers(0, 14, n),
            "n": 256.0 * rng.integers(1, 40, n),
            "k": 256.0 * rng.integers(1, 40, n),
        },
        "all_reduce": {"n_bytes": 2.0 ** rng.integers(8, 29, n), "ranks": 2.0 ** rng.integers(1, 4, n)},
    }[kernel]
    rows = KernelRows(
        kernel=kernel, accelerator=accelerator, engine=engine, version="1", dtype=dtype, shapes=shapes,
        seconds=np.ones(n), sources=np.full(n, "one"), at=np.arange(n),
    )  # fmt: skip
    values = {p.name: p.start for p in parameters_of(kernel) if p.required or kernel == "all_reduce"} | changed
    seconds = np.asarray(model_of(kernel).seconds(blank(rows, values), rows)) * np.exp(noise * rng.standard_normal(n))
    return KernelRows(
        kernel=kernel, accelerator=accelerator, engine=engine, version="1", dtype=dtype, shapes=shapes,
        seconds=seconds, sources=rows.sources, at=rows.at,
    )  # fmt: skip


def test_a_bounded_robust_fit_finds_a_line_despite_strange_rows_and_keeps_its_bounds():
    x = np.linspace(1, 100, 200)
    y = 3.0 + 2.0 * x
    y[::10] *= 5
    bounds = {"low": np.array([0.0, 0.0]), "high": np.array([10.0, 10.0])}
    values, _ = fit_log_ratio(lambda v: v[0] + v[1] * x, y, start=np.array([1.0, 1.0]), **bounds)
    assert values == pytest.approx([3.0, 2.0], rel=0.08)  # a plain fit is 40 % off
    bounds["high"] = np.array([10.0, 1.5])
    values, _ = fit_log_ratio(lambda v: v[0] + v[1] * x, y, start=np.array([1.0, 1.0]), **bounds)
    assert values[1] == 1.5


@pytest.mark.parametrize("kernel", ["gemm", "all_reduce"])
def test_made_up_measurements_are_predicted_on_shapes_left_out(kernel):
    rows = made_up(kernel)
    judged, ratio = held_out_ratio(rows)
    assert 0.2 * len(rows.seconds) <= judged.sum() <= 0.5 * len(rows.seconds)
    assert np.abs(ratio - 1).mean() < 0.06


def test_shapes_are_left_out_whole():
    rows = made_up()
    (left_out,) = hold_out(rows)
    unit = [tuple(pair) for pair in np.stack([rows.shapes["n"], rows.shapes["k"]], axis=1)]
    outside = {pair for pair, out in zip(unit, left_out, strict=True) if out}
    assert outside.isdisjoint({pair for pair, out in zip(unit, left_out, strict=True) if not out})


def test_fits_are_reproducible():
    rows = made_up()
    first, second = fit_kernel(rows), fit_kernel(rows)
    assert [fit.values for fit in first] == [fit.values for fit in second]
    assert np.array_equal(predict(first, rows), predict(second, rows))


def test_implementations_of_one_engine_are_kept_apart():
    rows = made_up(noise=0.0)
    slow = np.arange(len(rows.seconds)) % 2 == 0
    seconds = np.where(slow, rows.seconds * 2, rows.seconds)
    mixed = KernelRows(
        kernel="gemm", accelerator=rows.accelerator, engine="vllm", version="1", dtype="bf16", shapes=rows.shapes,
        seconds=seconds, sources=np.where(slow, "slow", "fast"), at=rows.at,
    )  # fmt: skip
    fits = fit_kernel(mixed)
    assert [fit.source for fit in fits] == ["", "fast", "slow"]
    assert np.abs(predict(fits, mixed) / seconds - 1).mean() < 0.08
    assert np.abs(predict(fits[:1], mixed) / seconds - 1).mean() > 0.2


def test_documents_hold_every_fit_and_rungs_that_widen():
    groups = [made_up(), made_up(engine="sglang", fixed_us=5.0), made_up(accelerator="nvidia-h100-sxm5-80gb")]
    found = calibrate(KernelTables(groups=groups), progress=lambda _: None)
    header = {"schema": 1, "as_of": "2026-11-29", "source": "made up"}
    card = card_document("nvidia-h200-sxm", found, header)
    assert {entry["engine"] for entry in card["kernels"]} == {"vllm", "sglang"}
    assert card["datasheet"]["bandwidth_bytes_per_s"] == 4.8e12
    ladder = ladder_document(found, header)
    assert set(ladder["cards"]) == {"nvidia-h200-sxm", "nvidia-h100-sxm5-80gb"}
    spreads = [ladder["spread"][rung]["gemm"] for rung in ladder["spread"]]
    for above, below in itertools.pairwise(spreads):
        assert below[0] <= above[0] <= 1 <= above[1] <= below[1]


def test_the_report_says_which_bar_is_missed():
    rows = made_up()
    good = KernelFits(rows=rows, fits=[], judged=rows, ratio=np.full(len(rows.seconds), 1.05))
    bad = np.full(len(rows.seconds), 1.3)
    assert [line.met for line in lines([(good.judged, good.ratio)]) if line.bar is not None] == [True]
    text = render_lines(lines([(rows, bad)]))
    assert "GEMM bf16" in text
    assert "missed" in text
    assert good.held_out()["mape"] == pytest.approx(0.05)
