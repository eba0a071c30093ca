"""Signals of casts, gradients and updates, against figures worked out by hand."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from trilemma.columns import document_of  # noqa: E402
from trilemma.precision.signals import frozen_update_percent, gradient_signals, tensor_signals  # noqa: E402


def test_cast_to_e4m3_by_hand() -> None:
    values = torch.tensor([1.0, -500.0, 1e-4, 0.0])
    kept = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    signals = tensor_signals(values, kept, limit=448.0)
    # One of four flushed to zero, one of four beyond 448, the zero is neither; (500 - 448) ** 2 / 4 = 676.
    assert signals.underflows_percent == 25
    assert signals.overflows_percent == 25
    assert signals.mse == pytest.approx(676)
    assert signals.amax == 500
    assert signals.sqnr_db == pytest.approx(10 * math.log10((1 + 500**2) / 52**2))


def test_limits_may_differ_by_element() -> None:
    values = torch.tensor([[1.0, 3.0], [1.0, 3.0]])
    signals = tensor_signals(values, values, limit=torch.tensor([[2.0], [4.0]]))
    assert signals.overflows_percent == 25
    assert signals.sqnr_db == math.inf


def test_nan_of_a_cast_counts_and_is_no_json_number() -> None:
    signals = tensor_signals(torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan]))
    assert signals.non_finite_percent == 50
    assert signals.overflows_percent == 50
    assert signals.sqnr_db == -math.inf
    assert document_of(signals, exact=True)["mse"] is None


def test_tiny_gradients_are_measured() -> None:
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 1e-25
    signals = tensor_signals(gradient, gradient.bfloat16())
    assert 50 < signals.sqnr_db < 60
    beside = gradient_signals([gradient], [gradient.bfloat16()])
    assert beside.norm_ratio == pytest.approx(1, abs=0.01)
    assert beside.cosine == pytest.approx(1, abs=1e-4)


def test_gradients_by_hand() -> None:
    signals = gradient_signals(
        [torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])], [torch.tensor([1.0]), torch.zeros(1, 2)]
    )
    assert signals.norm == 5
    assert signals.norm_ratio == 5
    assert signals.cosine == pytest.approx(0.6)
    assert math.isnan(gradient_signals([torch.zeros(2)], [torch.ones(2)]).cosine)


def test_frozen_updates_count_only_what_was_asked_to_move() -> None:
    old = torch.ones(4).bfloat16()
    new = old + torch.tensor([0, 1e-4, 1.0, 0]).bfloat16()
    assert frozen_update_percent([old], [new]) == 75
    assert frozen_update_percent([old], [new], asked=[torch.tensor([0.0, 1e-4, 1.0, 0.0])]) == 50
    assert frozen_update_percent([], []) == 0
