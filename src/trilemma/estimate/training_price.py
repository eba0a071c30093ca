"""Memory and seconds of training plans from one question, so that what is offloaded is priced the same everywhere."""

from __future__ import annotations

from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import TrainingMemory, training_memory
from trilemma.memory.training_model import TrainingModel
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.timing.training_step import StepTime, training_step
from trilemma.workloads import TrainingWorkload


def priced(
    model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, *, prepared: TrainingModel | None = None
) -> tuple[TrainingMemory, StepTime]:  # fmt: skip
    """Memory and step of one plan or of a table of plans: bytes that the memory moves over the host link are in the step."""
    memory = training_memory(model, cluster, plan, workload, all_stages=False, prepared=prepared)
    step = training_step(model, cluster, plan, workload, moved_bytes=memory.moved_bytes or None)
    return memory, step


def step_of(
    model: Model, cluster: Cluster, plan: TrainingPlan, workload: TrainingWorkload, *, prepared: TrainingModel | None = None
) -> StepTime:  # fmt: skip
    """The step of `priced`, for whoever does not ask for memory: a plan that keeps everything on the card moves nothing."""
    if not plan.offload.any:
        return training_step(model, cluster, plan, workload)
    return priced(model, cluster, plan, workload, prepared=prepared)[1]
