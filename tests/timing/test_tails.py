"""Percentiles where requests arrive on their own: the laws against textbook queues, and against the simulation."""

from __future__ import annotations

import numpy as np
import pytest

import trilemma as tl
from trilemma.timing.tails import crowd_deviations, poisson_percentile


def test_numbers_of_processor_sharing() -> None:
    """Steps as long as their sequences (growing near 1) keep a number with variance mean / (1 - busy): here 90 % busy, g = 9."""
    flight, _ = crowd_deviations(100.0, growing=0.9, prefilling=0.0)
    assert flight**2 * 100.0 == pytest.approx(1 / (1 - 0.9))


def test_numbers_of_a_server_for_each_are_poisson_and_stays_do_not_vary() -> None:
    """Steps of one length whatever their sequences: M/G/infinity."""
    flight, stay = crowd_deviations(64.0, growing=0.0, prefilling=0.0)
    assert flight == pytest.approx(1 / 8)
    assert stay == 0


def test_a_stay_varies_with_the_prompts_that_arrive_in_it() -> None:
    few, many = (crowd_deviations(n, growing=0.0, prefilling=0.5)[1] for n in (25.0, 100.0))
    assert few / many == pytest.approx(2.0)
    assert many < 0.1  # no more than the gain of 1 times one over the root of what arrives meanwhile


@pytest.mark.parametrize(
    ("mean", "share", "expected"), [(0.005, 0.99, 0), (0.1, 0.99, 1), (1.0, 0.99, 4), (2.0, 0.5, 2)]
)
def test_poisson_tables(mean: float, share: float, expected: int) -> None:
    """P(X <= k) of the tables: 0.9953 (0.1; 1), 0.9963 (1; 4), 0.6767 (2; 2)."""
    assert poisson_percentile(mean, share) == expected
    assert poisson_percentile(np.array([mean, 0.0]), share).tolist() == [expected, 0]


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_the_slowest_requests_are_those_of_the_simulation(share: float) -> None:
    """The median within 12 %, what the slowest take over it within 12 %, at shares of what each says is saturated (19.1
    requests a second in the simulation)."""
    plan = {"engine": "vllm", "context": 4096}
    most = tl.fit("llama-3.1-8b", "h100-sxm", isl=1024, osl=256, rate=5, **plan).to_dict()["speed"][
        "most_requests_per_s"
    ]
    said = tl.fit("llama-3.1-8b", "h100-sxm", isl=1024, osl=256, rate=most["value"] * share, **plan).to_dict()["speed"][
        "request_ms"
    ]
    seen = tl.simulate(
        "llama-3.1-8b",
        "h100-sxm",
        arrivals=f"poisson:{19.1 * share}",
        isl=1024,
        osl=256,
        requests=3000,
        bounds=False,
        **plan,
    ).to_dict()["metrics"]["e2e_ms"]
    assert said["p50"] == pytest.approx(seen["p50"], rel=0.12)
    assert said["p99"] / said["p50"] == pytest.approx(seen["p99"] / seen["p50"], rel=0.12)


def test_a_closed_loop_is_as_it_was() -> None:
    found = tl.fit("llama-3.1-8b", "h100-sxm", isl=1024, osl=256, concurrency=32).to_dict()["speed"]
    assert found["request_ms"]["p99"] - found["ttft_ms"]["p99"] == pytest.approx(
        found["request_ms"]["p50"] - found["ttft_ms"]["p50"], rel=1e-3
    )
