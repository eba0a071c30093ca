"""Statistics against numbers worked out by hand."""

from __future__ import annotations

import pytest

from trilemma.measured.metrics import errors, macro_median, pair_order, pool_small, reliability, verdict_score


def test_errors_on_a_hand_computed_table() -> None:
    # relative errors: +0.10, -0.20, 0, +0.50
    stats = errors([11, 8, 5, 3], [10, 10, 5, 2])
    assert stats is not None
    assert stats.n == 4
    assert stats.median_ape == pytest.approx(0.15)
    assert stats.mape == pytest.approx(0.2)
    assert stats.bias == pytest.approx(0.1)
    assert stats.p90_ape == pytest.approx(0.2 + 0.7 * 0.3)  # rank 2.7 of 0, .1, .2, .5
    assert stats.to_json().keys() == {"n", "median_ape", "mape", "p90_ape", "bias"}


def test_coverage_and_half_width_count_only_rows_with_an_interval() -> None:
    stats = errors([10, 10, 10], [9, 12, 50], low=[8, 9, None], high=[11, 11, None])
    assert stats is not None
    assert stats.coverage90 == pytest.approx(0.5)
    assert stats.half_width_median == pytest.approx((0.15 + 0.1) / 2)


def test_negative_measurements_are_judged_over_a_scale() -> None:
    stats = errors([1.0], [-1.0], low=[-2.0], high=[2.0], scale=[80.0])
    assert stats is not None
    assert stats.mape == pytest.approx(2 / 80)
    assert stats.half_width_median == pytest.approx(2 / 80)
    assert stats.coverage90 == 1


def test_no_rows_give_nothing() -> None:
    assert errors([], []) is None
    assert verdict_score([], []) is None
    assert pair_order([], [], []) is None
    assert macro_median([]) is None


def test_verdicts_on_a_hand_computed_table() -> None:
    # 4 started (3 called right), 2 did not (1 called right)
    score = verdict_score([True, True, True, False, True, False], [True, True, True, True, False, False])
    assert score is not None
    assert score.accuracy == pytest.approx(4 / 6)
    assert score.false_fit == pytest.approx(1 / 2)
    assert score.false_no_fit == pytest.approx(1 / 4)
    assert score.balanced_accuracy == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_always_starts_scores_one_half_balanced() -> None:
    score = verdict_score([True] * 10, [True] * 8 + [False] * 2)
    assert score is not None
    assert score.accuracy == pytest.approx(0.8)
    assert score.balanced_accuracy == pytest.approx(0.5)


def test_one_outcome_alone_has_no_balanced_accuracy() -> None:
    score = verdict_score([True, False], [True, True])
    assert score is not None
    assert score.balanced_accuracy is None
    assert "balanced_accuracy" not in score.to_json()
    assert "false_fit" not in score.to_json()


def test_order_of_pairs_within_groups() -> None:
    # group a: pairs (1,2) right, (1,3) right, (2,3) tie; group b: one pair wrong; c alone
    order = pair_order(list("aaabbc"), [1, 2, 2, 5, 4, 9], [10, 20, 30, 1, 2, 7])
    assert order is not None
    assert order.n == 4
    assert order.agreement == pytest.approx((1 + 1 + 0.5 + 0) / 4)


def test_pairs_that_measure_alike_do_not_count() -> None:
    assert pair_order(["a", "a"], [1, 2], [100, 104]) is None
    assert pair_order(["a", "a"], [1, 2], [-1, 5]) is None


def test_small_values_are_pooled_together() -> None:
    pooled = pool_small({"a": [1, 2, 3], "b": [4], "c": [5, 6]})
    assert pooled == {"a": [1, 2, 3], "(pooled)": [4, 5, 6]}
    assert pool_small({"a": [1, 2, 3]}) == {"a": [1, 2, 3]}


def test_macro_median_counts_each_group_once() -> None:
    groups = [errors([1.1] * 50, [1.0] * 50), errors([1.3], [1.0]), errors([1.2], [1.0])]
    middle = macro_median([group for group in groups if group is not None])
    assert middle is not None
    assert middle.n == 3
    assert middle.median_ape == pytest.approx(0.2)
    assert middle.coverage90 is None


def test_reliability_counts_each_bin_and_what_is_surer() -> None:
    said = [0.6, 0.96, 0.97, 0.995, 1.0]
    bins = {one.at_least: one for one in reliability(said, [True, False, True, True, True])}
    assert [bins[low].n for low in (0.5, 0.7, 0.95, 0.99)] == [1, 0, 2, 2]
    assert bins[0.7].held is None
    assert bins[0.95].held == 0.5
    assert bins[0.95].held_from == 0.75
    assert bins[0.99].held_from == 1.0
    assert reliability([], []) == ()


def test_a_score_tells_how_sure_verdicts_were() -> None:
    score = verdict_score([True, False], [True, True], sure=[0.995, 0.6])
    assert score is not None
    assert [one["n"] for one in score.to_json()["reliability"]] == [1, 0, 0, 0, 0, 1]
    assert "reliability" not in verdict_score([True], [True]).to_json()  # type: ignore[union-attr]
