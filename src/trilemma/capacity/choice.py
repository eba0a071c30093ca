"""What a recommendation answers: cards and counts, cheapest first, each with its plan and why it stands where it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trilemma.estimate.estimate import Estimate
from trilemma.hardware.accelerator import Accelerator
from trilemma.intervals import Interval
from trilemma.models.architecture import Model
from trilemma.plans.frameworks import written_for
from trilemma.workloads import Serving, TrainingWorkload

#: What is spared first: dollars of an hour, cards, or the watts that they draw.
SparedFirst = Literal["price", "gpus", "power"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CardChoice:
    """``gpus`` of one kind of card that carry the need, with the best plan on them.

    ``cost`` is what it takes of that which is spared first; ``run_usd`` and ``days`` are those of a training run of stated
    length, ``electricity`` dollars an hour of what the cards draw where a price of it is stated. ``stored`` says how the weights
    are stored or trained. ``why`` sets it against the first.
    """

    card: Accelerator
    gpus: int
    cost: float
    estimate: Estimate
    stored: str
    why: str = ""
    days: Interval | None = None
    run_usd: Interval | None = None
    electricity: Interval | None = None

    @property
    def usd_per_hour(self) -> Interval | None:
        """Of all cards, with their electricity where it is counted."""
        price = self.card.usd_per_hour
        if price is None:
            return None
        cards = price.scaled(self.gpus)
        return cards if self.electricity is None else cards.plus(self.electricity)

    @property
    def watts(self) -> Interval | None:
        """What all cards draw under the need, in watts."""
        return self.estimate.watts

    @property
    def limit_watts(self) -> float | None:
        """Of all boards at their limit, in watts."""
        return None if self.card.tdp_w is None else self.card.tdp_w.value * self.gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """Choices best first. ``asked`` cards were in question, ``searched`` of them were laid out: the others cannot be better
    than the last choice even at the datasheet's roofs. ``left_out`` counts cards by why. ``job`` is the model and the training
    as words of a command, "" for serving: an engine's command stands in each estimate."""

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
    job: str = field(default="")

    def command(self, choice: CardChoice) -> str:
        """What runs ``choice``: of a training, its best plan and the files that a framework takes; "" for serving."""
        if not self.job:
            return ""
        framework = written_for(choice.estimate.question.plan.implementation)
        asked = f"trilemma plan {self.job} --gpu {choice.card.id}:{choice.gpus} --json > plan.json"
        return f"{asked} && trilemma export plan.json --to {framework} -o run" if framework else asked
