"""Tiles of dense products: looked up as libraries look them up, and only where a card has that library."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trilemma.hardware import find
from trilemma.measured.kernels.fit import _choices
from trilemma.measured.kernels.tables import KernelRows
from trilemma.timing.kernels import gemm_s, kernel_coefficients
from trilemma.timing.kernels.formulas import parameters_of
from trilemma.timing.kernels.gemm_tiles import tile_rules

RULE = next(parameter for parameter in parameters_of("gemm") if parameter.name == "tile_rule")


def with_rule(number, **values):
    c, _ = kernel_coefficients(find("nvidia-h200-sxm"), "vllm", "gemm", "fp8")
    plain = {**c.values, "tile_rule": float(number), "splits_k": 0.0, "power_sag": 0.0, **values}
    return replace(c, values=plain)


def test_every_rule_that_a_fit_may_choose_is_in_the_data_file_and_holds_any_product():
    assert sorted(tile_rules()) == [int(choice) for choice in RULE.choices]
    for rule in tile_rules().values():
        rows, columns, tiles = rule.bands[-1]
        assert (rows, columns) == (np.inf, np.inf)
        assert tiles


@pytest.mark.parametrize(
    ("rule", "m", "n", "tile"),
    [
        (4, 1, 8192, (16, 64)),
        (4, 1, 8193, (32, 64)),
        (4, 17, 20000, (16, 64)),
        (4, 129, 9000, (64, 128)),
        (5, 16, 99999, (16, 64)),
        (5, 64, 1280, (16, 64)),
        (5, 64, 1281, (64, 64)),
        (5, 129, 64, (128, 128)),
        (6, 32, 64, (32, 64)),
        (7, 1, 1, (128, 128)),
    ],
)
def test_a_tile_is_looked_up_by_rows_and_columns(rule, m, n, tile):
    found = tile_rules()[rule]
    assert found.bands[int(found.band(m, n))][2] == {tile}
    assert found.allows(*tile)[found.band(m, n)]


def test_a_library_with_one_tile_pays_all_of_its_rows():
    one_tile, searching = with_rule(7), with_rule(0)
    compute_bound = {"n": 65536, "k": 8192}
    few, whole = (float(gemm_s(one_tile, m, fused_quantisation=True, **compute_bound)) for m in (2, 128))
    assert whole / few < 1.1
    assert gemm_s(searching, 2, **compute_bound) < gemm_s(one_tile, 2, **compute_bound)


def test_busy_tensor_cores_are_slower_and_idle_ones_are_not():
    plain, capped = with_rule(0), with_rule(0, power_sag=0.4)
    assert float(gemm_s(capped, 1, 4096, 4096) / gemm_s(plain, 1, 4096, 4096)) < 1.01
    slowed = float(gemm_s(capped, 16384, 16384, 16384) / gemm_s(plain, 16384, 16384, 16384))
    assert 1.1 < slowed < 1.4


@pytest.mark.parametrize(
    ("card", "dtype", "expected"),
    [
        ("nvidia-l40s", "fp8", {0, 1, 2, 3, 4}),
        ("nvidia-h100-sxm5-80gb", "fp8", {0, 1, 2, 3, 5}),
        ("nvidia-h100-sxm5-80gb", "bf16", {0, 1, 2, 3}),
        ("nvidia-rtx-pro-6000-blackwell", "fp8", {0, 1, 2, 3, 6, 7}),
    ],
)
def test_a_fit_tries_the_rules_that_the_card_can_have(card, dtype, expected):
    one = np.ones(1)
    rows = KernelRows(
        kernel="gemm", accelerator=card, engine="vllm", version="1", dtype=dtype, shapes={"m": one, "n": one, "k": one},
        seconds=one, sources=np.full(1, "one"), at=np.arange(1),
    )  # fmt: skip
    assert {int(choice) for choice in _choices(RULE, rows)} == expected
