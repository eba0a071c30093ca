"""How Megatron-LM is started for a plan."""

from __future__ import annotations

from trilemma.engines.job_files import OpenFlag, StartedProgram
from trilemma.engines.megatron.write import write
from trilemma.models.architecture import Model
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

_DEVICE_CONNECTIONS = ("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def started(
    *, to: str, model: Model, plan: TrainingPlan, workload: TrainingWorkload, gpus: int, gpus_per_node: int
) -> StartedProgram:
    """``pretrain_gpt.py`` behind torchrun. Raises `InputError` for what Megatron-LM cannot do."""
    del to, gpus, gpus_per_node
    program = ("pretrain_gpt.py", *write(model=model, plan=plan, workload=workload))
    # Megatron-LM's order of collectives and products relies on one queue before Blackwell (arguments.py).
    environment = (_DEVICE_CONNECTIONS,) if plan.layout.tp > 1 or plan.layout.cp > 1 else ()
    return StartedProgram(program=program, environment=environment, asked=_asked(program, workload))


def _asked(program: tuple[str, ...], workload: TrainingWorkload) -> tuple[OpenFlag, ...]:
    """What Megatron-LM needs beside a plan: it has no defaults for these, or ones that are another model's."""
    asked = [
        OpenFlag(flag="--data-path", variable="DATA_PATH", meaning="prefix of the preprocessed data, without .bin"),
        OpenFlag(flag="--lr", variable="LEARNING_RATE", meaning="peak learning rate"),
    ]
    if workload.tokens is None:
        asked.append(OpenFlag(flag="--train-iters", variable="TRAIN_ITERS", meaning="optimizer steps of the run"))
    if "rope" in program:
        meaning = "base of the rotary embedding, rope_theta in the config.json of the model"
        asked.append(OpenFlag(flag="--rotary-base", variable="ROTARY_BASE", meaning=meaning))
    return tuple(asked)
