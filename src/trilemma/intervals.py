"""A number with its error bar."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma.errors import TrilemmaError


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
