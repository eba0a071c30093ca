"""Traffic that is drawn has the statistics that its words say, and is the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.simulation.serving.drawn import ArrivalProcess, LengthDistribution, drawn


def gaps(words: str, requests: int = 40_000) -> np.ndarray:
    fixed = LengthDistribution.parse(1, "isl")
    times = [one.arrival_s for one in drawn(ArrivalProcess.parse(words), fixed, fixed, requests=requests, seed=2)]
    return np.diff(np.array([0.0, *times]))


@pytest.mark.parametrize(
    ("words", "mean", "variation"),
    [("poisson:4", 0.25, 1.0), ("gamma:4:2", 0.25, 2.0), ("gamma:4:0.5", 0.25, 0.5), ("constant:4", 0.25, 0.0)],
)
def test_gaps(words: str, mean: float, variation: float) -> None:
    found = gaps(words)
    assert found.mean() == pytest.approx(mean, rel=0.03)
    assert found.std() / found.mean() == pytest.approx(variation, rel=0.04, abs=1e-9)


def test_bursts() -> None:
    assert not gaps("burst", 100).any()
    times = np.cumsum(gaps("burst:3:10", 9))
    assert times.tolist() == [0, 0, 0, 10, 10, 10, 20, 20, 20]


@pytest.mark.parametrize(
    ("words", "mean", "variation"),
    [
        ("1K", 1024, 0.0), ("uniform:100:300", 200, 0.29), ("normal:1000:0.2", 1000, 0.2), ("lognormal:1000:0.8", 1000, 0.8),
        ("exponential:500", 500, 1.0),
    ],
)  # fmt: skip
def test_lengths(words: str, mean: float, variation: float) -> None:
    lengths = LengthDistribution.parse(words, "isl")
    arrivals = drawn(ArrivalProcess.parse("poisson:1"), lengths, lengths, requests=40_000, seed=1)
    found = np.array([one.isl for one in arrivals])
    assert lengths.mean == pytest.approx(mean)
    assert found.mean() == pytest.approx(mean, rel=0.02)
    assert found.std() / found.mean() == pytest.approx(variation, rel=0.05, abs=1e-9)
    assert found.min() >= 1


def test_more_requests_begin_with_the_same() -> None:
    short = LengthDistribution.parse("lognormal:100:1", "isl")
    few, many = (list(drawn(ArrivalProcess.parse("poisson:3"), short, short, requests=n, seed=9)) for n in (100, 9000))
    assert many[:100] == few


@pytest.mark.parametrize(
    "words", ["poisson", "poisson:0", "poisson:-1", "poisson:nan", "gamma:3", "uniform:3", "", "burst:2.5:1"]
)
def test_words_that_say_nothing(words: str) -> None:
    with pytest.raises(InputError, match="arrivals"):
        ArrivalProcess.parse(words)


@pytest.mark.parametrize("words", ["0", "-5", "many", "uniform:9:3", "lognormal:10", "normal:0:1", "1e400:2"])
def test_lengths_that_say_nothing(words: str) -> None:
    with pytest.raises(InputError, match="osl"):
        LengthDistribution.parse(words, "osl")
