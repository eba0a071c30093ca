"""The knapsack: exact against every combination, greedy beside it, budgets kept."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilemma.errors import InputError
from trilemma.precision.allocate import FormatOption, Frontier, Problem, greedy, uniform, uniforms

BITS = (2.5, 3.5, 4.25, 4.5, 6.5, 8.25, 8.5, 16.0)


def problem(groups: int, seed: int, bits: tuple[float, ...] = BITS) -> Problem:
    """Groups of uneven sizes whose losses fall by about four per bit, with noise, as measured ones do."""
    random = Random(seed)
    sizes = [random.choice([4096, 8192, 16384, 45056]) for _ in range(groups)]
    options = []
    for size in sizes:
        scale = 10 ** random.uniform(-2, 0)
        options.append(
            tuple(
                FormatOption(
                    format=f"f{one:g}", bytes=int(size * one / 8), loss=scale * 4**-one * random.uniform(0.5, 1.5)
                )
                for one in bits
            )
        )
    return Problem(groups=tuple(f"g{at}" for at in range(groups)), options=tuple(options), elements=tuple(sizes))


@given(st.integers(0, 10_000), st.floats(2.5, 16))
@settings(max_examples=40)
def test_exact_is_the_best_of_every_combination(seed: int, bits: float) -> None:
    small = problem(4, seed, BITS[:5])
    budget = small.bytes_at(bits)
    combinations = (
        (sum(option.bytes for option in picks), sum(option.loss for option in picks))
        for picks in itertools.product(*small.options)
    )
    best = min(loss for size, loss in combinations if size <= budget)
    found = Frontier(small).within(budget)
    assert found.loss == pytest.approx(best)
    assert found.bytes <= budget
    by_name = {
        (group, option.format): option
        for group, options in zip(small.groups, small.options, strict=True)
        for option in options
    }
    assert sum(by_name[item].bytes for item in found.formats.items()) == found.bytes
    assert found.loss <= greedy(small, budget).loss + 1e-15


@pytest.mark.parametrize("bits", [3.5, 4.25, 4.5, 5.0, 5.5, 6.5, 8.25])
def test_greedy_stays_near_exact_and_within_the_budget(bits: float) -> None:
    ratios = []
    for seed in range(6):
        many = problem(24, seed)
        budget = many.bytes_at(bits)
        quick = greedy(many, budget)
        assert quick.bytes <= budget
        ratios.append(quick.loss / Frontier(many).within(budget).loss)
    assert min(ratios) >= 1 - 1e-12
    assert sorted(ratios)[len(ratios) // 2] <= 1.03


def test_frontier_falls_and_contains_the_ends() -> None:
    many = problem(30, 1)
    points = Frontier(many).points()
    assert points[0][0] == many.least_bytes
    assert all(low[0] < high[0] and low[1] > high[1] for low, high in itertools.pairwise(points))


def test_fewest_bytes_within_a_loss() -> None:
    frontier = Frontier(problem(10, 3))
    found = frontier.least_bytes(0.05)
    assert found.loss <= 0.05
    assert frontier.within(found.bytes - 1).loss > 0.05


def test_what_no_budget_meets() -> None:
    one = problem(3, 0)
    for search in (Frontier(one).within, lambda budget: greedy(one, budget)):
        with pytest.raises(InputError, match="smallest formats"):
            search(one.least_bytes - 1)
    with pytest.raises(InputError, match="widest formats"):
        Frontier(one).least_bytes(-1.0)
    with pytest.raises(InputError, match="at least one option"):
        Problem(groups=("a",), options=((),), elements=(1,))


def test_uniform_formats_are_among_the_candidates() -> None:
    some = problem(5, 2)
    assert [one.how for one in uniforms(some)] == [f"uniform f{bits:g}" for bits in BITS]
    assert uniform(some, "f5") is None
    assert all(Frontier(some).within(one.bytes).loss <= one.loss + 1e-15 for one in uniforms(some))
