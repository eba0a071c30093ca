"""What the estimator says of the run that a file is of: the figure beside the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trilemma.errors import InputError
from trilemma.estimate.estimate import Estimate
from trilemma.intervals import Interval
from trilemma.question import Question


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """The answer to the question that a run is of, with remedies where it does not fit.

    ``said`` is where the question comes from ("the command given", "log.txt:3"); ``price`` answers another question of the
    same kind; ``command`` holds the words of the run, where there were any.
    """

    answer: Estimate
    said: str
    price: Callable[[Question[Any, Any]], Estimate]
    command: tuple[str, ...] = ()

    def priced(self, question: Question[Any, Any]) -> Estimate | None:
        """The answer to a second question; None where it cannot be asked."""
        try:
            return self.price(question)
        except InputError:
            return None


def shown(figure: Interval, unit: str = "") -> str:
    """ "12.3 (11.0 – 14.1) s": the value with its range."""
    unit = f" {unit}" if unit else ""
    return f"{plain(figure.value)} ({plain(figure.low)} – {plain(figure.high)}){unit}"


def plain(value: float) -> str:
    """A number with four digits, never in powers of ten where it is large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def away(observed: float, figure: Interval) -> float:
    """How far outside the range a figure lies, in its unit: 0 inside, negative below."""
    return min(observed - figure.low, 0.0) or max(observed - figure.high, 0.0)
