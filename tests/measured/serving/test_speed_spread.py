"""Error bars by distance: blocks weigh the same, few blocks borrow, bounds hold what they never saw."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trilemma.intervals import NINETY, student_t_95
from trilemma.measured.serving.speed.spread import FEWEST_BLOCKS, Residual, half_width, spreads_of


def residuals(
    distance: str, blocks: list[list[float]], *, family: str = "dense", figure: str = "tpot"
) -> list[Residual]:
    return [
        Residual(figure=figure, family=family, distance=distance, block=(distance, at), ratio=ratio)
        for at, block in enumerate(blocks)
        for ratio in block
    ]


def test_a_block_of_many_rows_weighs_no_more_than_one_of_few():
    small = [[1.0 + at / 100] for at in range(40)]
    assert half_width([[3.0] * 2, *small]) == half_width([[3.0] * 2000, *small]) < math.log(1.5)


def test_slow_and_fast_count_alike():
    assert half_width([[1.5], *[[1.0]] * 4]) == pytest.approx(half_width([[1 / 1.5], *[[1.0]] * 4]))
    assert half_width([[1.5], *[[1.0]] * 4]) == pytest.approx(math.log(1.5))  # five blocks: the largest of them


def test_nine_of_ten_rows_of_blocks_to_come_lie_inside():
    """Blocks with an error of their own and noise of their rows: 400 classes of 20 blocks, each judged by one block more."""
    random = np.random.default_rng(3)

    def block() -> list[float]:
        return np.exp(random.normal(0, 0.2) + random.normal(0, 0.05, random.integers(2, 60))).tolist()

    inside = []
    for _ in range(400):
        half = half_width([block() for _ in range(20)])
        inside.append(np.mean(np.abs(np.log(block())) <= half))
    assert 0.87 < np.mean(inside) < 0.96


def test_rows_of_a_class_to_come_lie_inside_where_one_block_is_most_of_them():
    """Ten blocks, one as large as the others together, with an error of its own: bounds hold rows, whichever block is new."""
    random = np.random.default_rng(7)
    inside, rows = 0.0, 0
    for _ in range(300):
        off = random.normal(0, 0.3, 11)
        blocks = [
            np.exp(error + random.normal(0, 0.05, 90 if at == 0 else 10)).tolist() for at, error in enumerate(off)
        ]
        new = int(random.integers(11))
        (bound,) = (
            one
            for one in spreads_of(residuals("other model", [block for at, block in enumerate(blocks) if at != new]))
            if (one.family, one.distance) == ("", "other model")
        )
        inside += sum(bound.low <= ratio <= bound.high for ratio in blocks[new])
        rows += len(blocks[new])
    assert 0.86 < inside / rows < 0.97


def test_a_class_of_few_blocks_borrows_from_the_next_farther_away():
    near = residuals("other model", [[1.01], [1.02]])
    far = residuals("other precision", [[1.4]] * FEWEST_BLOCKS)
    found = {(one.distance, one.family): one for one in spreads_of([*near, *far])}
    few = student_t_95(1 + FEWEST_BLOCKS) / NINETY
    assert found["other model", "dense"].half == pytest.approx(math.log(1.4) * few)
    assert found["other model", "dense"].blocks == 2 + FEWEST_BLOCKS
    assert found["own deployment", "dense"].half == pytest.approx(math.log(1.4) * few)


def test_a_family_of_few_blocks_has_the_bounds_of_both():
    rows = [*residuals("other model", [[1.1]] * 9), *residuals("other model", [[1.5]], family="mixture")]
    families = {one.family for one in spreads_of(rows) if one.distance == "other model"}
    assert families == {"dense", ""}
