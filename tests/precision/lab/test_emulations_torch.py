"""Shared amax of tensor-parallel shards, and the two roundings of MX scales."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from trilemma.precision.lab.emulations import cast_shards, loss_gradient, moving_outlier, mx_scale_bias  # noqa: E402


def test_shards_with_their_own_scales_saturate_and_with_a_shared_amax_do_not() -> None:
    steps = moving_outlier(steps=12)
    apart, shared = (cast_shards(steps, shared_amax=answer, margin=1)[1:] for answer in (False, True))
    assert all(max(step.amaxes) > 20 * min(step.amaxes) for step in apart)
    # The rank that the outlier comes to has seen none in the step before: its whole row saturates.
    assert all(step.signals.overflows_percent > 0.5 for step in apart)
    assert all(step.signals.sqnr_db < 3 for step in apart)
    assert all(step.signals.overflows_percent == 0 for step in shared)
    assert all(step.signals.sqnr_db > 25 for step in shared)


def test_shards_whose_amax_differs_but_stays_do_not_need_sharing() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = [
        [torch.randn(64, 64, generator=generator), 100 * torch.randn(64, 64, generator=generator)] for _ in range(6)
    ]
    apart = cast_shards(steps, shared_amax=False, margin=1)[1:]
    assert all(step.signals.overflows_percent == 0 for step in apart)


def test_a_long_history_saturates_once_a_rank() -> None:
    apart = cast_shards(moving_outlier(steps=8), shared_amax=False, history=16, history_rule="max", margin=1)
    assert [step.signals.overflows_percent > 0.1 for step in apart] == [False, True, *[False] * 6]


@pytest.mark.parametrize("tokens", [512, 1024])
def test_floor_scales_shrink_the_gradient_of_a_power_of_two_of_tokens(tokens: int) -> None:
    floor, rceil = mx_scale_bias(loss_gradient(tokens=tokens))
    assert floor.kept < 0.9
    assert floor.signals.overflows_percent > 1
    assert rceil.kept == pytest.approx(1, abs=0.02)
    assert rceil.signals.overflows_percent == 0
    assert rceil.signals.sqnr_db > floor.signals.sqnr_db + 10


def test_over_all_sizes_floor_shrinks_and_rceil_does_not() -> None:
    kept = [mx_scale_bias(loss_gradient(tokens=tokens)) for tokens in range(256, 512, 8)]
    floor, rceil = (sum(pair[at].kept for pair in kept) / len(kept) for at in (0, 1))
    assert floor < 0.992
    assert rceil == pytest.approx(1, abs=0.001)
    normal = torch.randn(512, 512, generator=torch.Generator().manual_seed(1))
    floor_normal, rceil_normal = mx_scale_bias(normal)
    assert abs(rceil_normal.kept - 1) < 1e-3 < 1 - floor_normal.kept
