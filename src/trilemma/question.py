"""The question that every answer is to: which model, on which cards, for which load, run how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from trilemma.plans.plan import Plan

if TYPE_CHECKING:
    from trilemma.hardware.cluster import Cluster
    from trilemma.models.architecture import Model
    from trilemma.plans.training import TrainingPlan
    from trilemma.workloads import Serving, TrainingWorkload

Load = TypeVar("Load", bound="Serving | TrainingWorkload")
How = TypeVar("How", bound="Plan | TrainingPlan")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Question(Generic[Load, How]):
    """``model`` on ``cluster`` for ``workload``, run as ``plan`` says: of serving, or of training.

    ``free_bytes`` is what other processes leave of each card, ``capacity_bytes`` replaces the card's runtime total.
    ``served_as`` is what the engine's command line names (default: the model's hub id). Where the weights are not those
    published, ``scheme`` names their precision and ``checkpoint`` says which checkpoint has to be made. ``terms`` take the
    place of the terms of serving speed that ship (`trilemma.timing.serving_terms.ServingTerms`), such as those of a profile.
    """

    model: Model
    cluster: Cluster
    workload: Load
    plan: How
    free_bytes: float | None = None
    capacity_bytes: float | None = None
    served_as: str | None = None
    scheme: str | None = None
    checkpoint: str | None = None
    terms: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        return (
            f"<Question: {self.model.name[:80]} on {self.cluster.gpus} x {self.cluster.name[:80]}, {self.engine[:40]}>"
        )

    @property
    def engine(self) -> str:
        """Who runs it, as the plan names it: a serving engine or a training framework."""
        return self.plan.engine.name if isinstance(self.plan, Plan) else self.plan.implementation

    @property
    def named(self) -> str:
        """The model's word on the engine's command line."""
        from trilemma.models.catalogue import served_id

        return self.served_as or served_id(self.model.name)


ServingQuestion: TypeAlias = "Question[Serving, Plan]"
TrainingQuestion: TypeAlias = "Question[TrainingWorkload, TrainingPlan]"
