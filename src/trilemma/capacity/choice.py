"""What a recommendation answers: cards and counts, cheapest first, each with its plan and why it stands where it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trilemma.capacity.offers import SparedFirst
from trilemma.estimate.estimate import Estimate
from trilemma.hardware.accelerator import Accelerator
from trilemma.intervals import Interval
from trilemma.models.architecture import Model
from trilemma.workloads import Serving, TrainingWorkload


@dataclass(frozen=True, kw_only=True, slots=True)
class CardChoice:
    """``gpus`` of one kind of card that carry the need, with the best plan on them.

    ``cost`` is what it takes of that which is spared first; ``run_usd`` and ``days`` are those of a training run of stated
    length. ``stored`` says how the weights are stored or trained. ``why`` sets it against the first.
    """

    card: Accelerator
    gpus: int
    cost: float
    estimate: Estimate
    stored: str
    why: str = ""
    days: Interval | None = None
    run_usd: Interval | None = None

    @property
    def usd_per_hour(self) -> Interval | None:
        price = self.card.usd_per_hour
        return None if price is None else price.scaled(self.gpus)

    @property
    def watts(self) -> float | None:
        """Board power of all cards, in watts: the limit, not the draw."""
        return None if self.card.tdp_w is None else self.card.tdp_w.value * self.gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """Choices best first. ``asked`` cards were in question, ``searched`` of them were laid out: the others cannot be better
    than the last choice even at the datasheet's roofs. ``left_out`` counts cards by why."""

    model: Model
    workload: Serving | TrainingWorkload
    spared: SparedFirst
    choices: tuple[CardChoice, ...]
    asked: int
    searched: int
    left_out: Mapping[str, int]
    assumed: tuple[str, ...]
    seconds: float
    nearest: str = field(default="")
