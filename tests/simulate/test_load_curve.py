"""Latency against load, its knee, and the chart of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

import trilemma as tl
from trilemma.errors import InputError


def test_the_curve_rises_to_saturation() -> None:
    found = tl.simulate(
        "llama-3.1-8b",
        "h100-sxm",
        arrivals="poisson:3",
        isl="lognormal:800:0.5",
        osl=100,
        requests=800,
        load_curve=True,
    )
    curve = found.load_curve
    assert curve is not None
    tails = [one.metrics.ttft_ms.p99 for one in curve.points if one.metrics.ttft_ms is not None]
    assert tails[-1] > 3 * tails[0]
    assert all(later > 0.9 * earlier for earlier, later in pairwise(tails))
    assert curve.points[0].requests_per_s <= curve.knee_requests_per_s < curve.saturation_requests_per_s
    for point in curve.points:
        if point.share_of_saturation <= 0.3:  # what arrives is answered
            assert point.completed_per_s == pytest.approx(point.requests_per_s, rel=0.15)
    fit = tl.fit("llama-3.1-8b", "h100-sxm", isl=800, osl=100, rate=3.0).to_dict()
    most = fit["speed"]["most_requests_per_s"]["value"]  # the closed form of the same
    assert curve.saturation_requests_per_s == pytest.approx(most, rel=0.2)
    chart = found.chart()
    assert chart is not None
    assert [panel["title"]["text"] for panel in chart["vconcat"]] == [
        "Latency against load", "How many requests are as fast", "Requests over time", "Cache held",
    ]  # fmt: skip
    for name, points in found.cdf_ms.items():
        assert points == sorted(points), name
        assert [share for share, _ in points] == sorted({share for share, _ in points})


def test_requests_that_come_at_once_have_no_curve() -> None:
    with pytest.raises(InputError, match="load_curve"):
        tl.simulate("llama-3.1-8b", "h100-sxm", arrivals="burst", isl=100, osl=10, requests=20, load_curve=True)
