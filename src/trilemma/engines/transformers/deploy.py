"""How a script on the Trainer is started for a plan: under DeepSpeed or Accelerate."""

from __future__ import annotations

from trilemma.engines.job_files import StartedProgram
from trilemma.engines.transformers.write import accelerate_yaml, check, deepspeed_json, flags
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload


def started(
    *, to: str, model: Model, plan: TrainingPlan, workload: TrainingWorkload, gpus: int, gpus_per_node: int
) -> StartedProgram:
    """``train.py`` with the file of DeepSpeed, or behind ``accelerate launch``. Raises `InputError`."""
    check(plan, to=to)
    words = flags(model=model, plan=plan, workload=workload)
    if to == "deepspeed":
        return StartedProgram(
            program=("train.py", "--deepspeed", "ds_config.json", *words),
            files={"ds_config.json": deepspeed_json(plan=plan, workload=workload)},
        )
    return StartedProgram(
        program=("train.py", *words),
        launcher=("accelerate", "launch", "--config_file", "accelerate.yaml"),
        files={"accelerate.yaml": accelerate_yaml(plan=plan, gpus=gpus, gpus_per_node=gpus_per_node)},
    )
