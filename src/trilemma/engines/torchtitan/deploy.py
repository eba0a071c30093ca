"""How torchtitan is started for a plan."""

from __future__ import annotations

from trilemma.engines.job_files import StartedProgram
from trilemma.engines.torchtitan.write import write
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload


def started(
    *, to: str, model: Model, plan: TrainingPlan, workload: TrainingWorkload, gpus: int, gpus_per_node: int
) -> StartedProgram:
    """``-m torchtitan.train`` behind torchrun. Raises `InputError` for models and options that torchtitan has not."""
    del to, gpus, gpus_per_node
    return StartedProgram(program=("-m", "torchtitan.train", *write(model=model, plan=plan, workload=workload)))
