"""A number with its error bar."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trilemma.errors import TrilemmaError


def normal_deviations(chance: float) -> float:
    """Standard deviations below which a normal figure lies with ``chance``: the inverse of `normal_cdf`."""
    if chance == 0.5:  # even odds, as most ask
        return 0.0
    from statistics import NormalDist  # slow to import

    return NormalDist().inv_cdf(chance)


#: Half-width of a central 90 % interval in standard deviations of a normal law.
NINETY = 1.645


def normal_cdf(deviations: Any) -> Any:
    """The probability that a standard normal figure is at most ``deviations`` (number or array): Abramowitz and Stegun 26.2.17,
    within 7.5e-8."""
    at = np.abs(np.asarray(deviations, dtype=float))
    t = 1 / (1 + 0.2316419 * at)
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    above = np.exp(-at * at / 2) / math.sqrt(2 * math.pi) * series
    return np.where(np.asarray(deviations) > 0, 1 - above, above)


def student_t_95(freedom: float) -> float:
    """The 95 % point of Student's t, one-sided: exact for 1 and 2 degrees of ``freedom``, else Cornish and Fisher's expansion
    (Abramowitz and Stegun 26.7.5). Degrees between those are as those below them. Raises `TrilemmaError` below 1."""
    if not freedom >= 1:
        raise TrilemmaError(f"Student's t of {freedom} degrees of freedom")
    if freedom < 3:
        return 6.313752 if freedom < 2 else 2.919986
    z = normal_deviations(0.95)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """``value`` with the bounds of its central 90 % interval; an exact number has three equal figures."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise TrilemmaError(
                f"interval bounds out of order: {self.low} <= {self.value} <= {self.high} does not hold"
            )

    @classmethod
    def exact(cls, value: float) -> Interval:
        return cls(value=value, low=value, high=value)

    @classmethod
    def around(cls, value: float, relative: float) -> Interval:
        """``value`` ± ``relative`` of itself."""
        half = abs(value) * relative
        return cls(value=value, low=value - half, high=value + half)

    def scaled(self, factor: float) -> Interval:
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(value=self.value * factor, low=low, high=high)

    def plus(self, other: Interval) -> Interval:
        """The sum where both are off alike: bounds add."""
        return Interval(value=self.value + other.value, low=self.low + other.low, high=self.high + other.high)

    def at_chance(self, chance: float) -> float:
        """The limit below which a positive figure is with the probability ``chance``: the inverse of `chance_below`."""
        if not 0 < self.low < self.high:
            return self.value
        deviations = normal_deviations(chance)
        bound = self.low if deviations < 0 else self.high
        return self.value * math.exp(math.log(bound / self.value) * abs(deviations) / NINETY)

    def chance_below(self, limit: float) -> float:
        """The probability that a positive figure is at most ``limit``.

        ``value`` is the median, ``low`` and ``high`` the 5th and 95th percentile, log-normal on each side: what is shown, its
        range and its chance are of one law, and a figure holds a limit with at least even odds just where it lies within it.
        """
        if not 0 < self.low < self.high:
            return float(self.value <= limit)
        if limit <= 0:
            return 0.0
        bound = self.low if limit < self.value else self.high
        if bound == self.value:
            return float(limit >= self.value)
        deviations = NINETY * math.log(limit / self.value) / abs(math.log(bound / self.value))
        return (1 + math.erf(deviations / math.sqrt(2))) / 2
