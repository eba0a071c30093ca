"""Waste of paged and of contiguous caches, by hand and by the rule that the last block is half empty."""

from __future__ import annotations

import pytest

from trilemma.simulation.serving.allocation import BLOCK_SIZES, waste_of
from trilemma.simulation.serving.drawn import ArrivalProcess, LengthDistribution, drawn
from trilemma.simulation.serving.traffic import Arrival


def test_one_request_by_hand() -> None:
    """A prompt of 3 and two tokens more: 3, 4, 5 tokens live; blocks of 8 hold 8 each, one piece of the request 5, of 16."""
    found = {(one.way, one.block_size): one.unfilled_share for one in waste_of([Arrival(0, 3, 2)], context=100)}
    assert found["paged", 1] == 0
    assert found["paged", 8] == pytest.approx(1 - 12 / 24)
    assert found["whole_request", None] == pytest.approx(1 - 12 / 15)
    assert found["power_of_two", None] == pytest.approx(1 - 12 / 24)
    assert found["whole_context", None] == pytest.approx(1 - 12 / 300)


def test_paging_wastes_half_a_block_a_sequence() -> None:
    lengths = LengthDistribution.parse("lognormal:600:0.8", "isl")
    arrivals = list(drawn(ArrivalProcess.parse("poisson:1"), lengths, lengths, requests=800, seed=1))
    found = {(one.way, one.block_size): one.unfilled_share for one in waste_of(arrivals, context=8192)}
    paged = [found["paged", size] for size in BLOCK_SIZES]
    assert paged == sorted(paged)
    steps = sum(one.osl + 1 for one in arrivals)
    live = sum((one.osl + 1) * (one.isl + one.osl / 2) for one in arrivals)
    for size, share in zip(BLOCK_SIZES, paged, strict=True):
        empty = (size - 1) / 2 * steps
        assert share == pytest.approx(empty / (empty + live), abs=0.003)
    assert found["paged", 16] < 0.04  # below 4 %, as Kwon et al. 2023 measured
    assert found["whole_context", None] > 0.6
