"""What judging one row of a measured table gives: figures side by side, start or no start, or why it was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureComparison:
    """One figure, predicted and measured, in the unit that the metric's name ends in.

    ``low`` and ``high`` bound the prediction (90 %); None where no interval is claimed. ``scale`` replaces the measured value
    as the denominator of the relative error (a pool of a few MiB would make any error look infinite).
    """

    metric: str
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None
    scale: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartVerdict:
    """Whether the engine starts: as predicted (stage and probability of "ok") and as the row says."""

    predicted: bool
    started: bool
    stage: str
    outcome: str
    probability_ok: float | None = None

    @property
    def sure(self) -> float | None:
        """The probability given to what is predicted."""
        chance = self.probability_ok
        return None if chance is None else chance if self.predicted else 1 - chance


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One row judged, or ``skipped`` with the reason.

    ``cells`` are the row's own columns (for ``--macro``); ``classes`` are the classes it belongs to (class → value);
    ``config`` names the question asked, equal for rows that ask the same; ``order_group`` names rows whose order is comparable.
    ``assumed`` lists defaults that were filled in, ``left_out`` figures of the row that could not be judged, with the reason.
    """

    row_id: str
    cells: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    comparisons: tuple[FigureComparison, ...] = ()
    start: StartVerdict | None = None
    config: str = ""
    order_group: str = ""
    order_metric: str = ""
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def used(self) -> bool:
        return bool(self.comparisons) or self.start is not None
