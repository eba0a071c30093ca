"""Prices say how they were made: the middle of offers, one figure, or a placeholder."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trilemma.hardware.catalogue import all_accelerators, find
from trilemma.hardware.price import is_placeholder, price_warnings, price_words
from trilemma.intervals import Interval


def test_words_hold_the_middle_and_both_ends() -> None:
    card = replace(find("h100-sxm"), usd_per_hour=Interval(value=3.0, low=1.5, high=6.0))
    words = price_words(card)
    for part in ("$3.00", "geometric mean", "$1.50 – $6.00", card.price_as_of):
        assert part in words
    assert [warning.code for warning in price_warnings([card, card])] == ["price"]


def test_narrow_prices_and_single_ones_are_no_warning() -> None:
    card = replace(find("h100-sxm"), usd_per_hour=Interval(value=2.0, low=1.5, high=2.6))
    assert not list(price_warnings([card]))
    assert "one public figure" in price_words(replace(card, usd_per_hour=Interval.exact(2.0)))
    assert [one.code for one in price_warnings([replace(card, usd_per_hour=None)])] == ["no-price"]


@pytest.mark.parametrize("name", ["b300-sxm", "gb300"])
def test_placeholders_of_sources_are_said(name: str) -> None:
    card = find(name)
    assert is_placeholder(card)
    assert "placeholder" in next(price_warnings([card])).message


def test_every_price_is_the_geometric_mean_of_its_ends() -> None:
    priced = [card for card in all_accelerators() if card.usd_per_hour is not None]
    assert len(priced) > 20
    for card in priced:
        price = card.usd_per_hour
        assert price is not None
        assert price.value == pytest.approx(math.sqrt(price.low * price.high)), card.id
