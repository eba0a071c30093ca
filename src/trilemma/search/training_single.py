"""One training plan from what a user settles: the rest is the implementation's plainest."""

from __future__ import annotations

from dataclasses import replace

from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.models.architecture import Model
from trilemma.plans.plan import Layout
from trilemma.plans.training import Recompute, TrainingPlan
from trilemma.quantities import counted
from trilemma.search.training_layouts import TrainingConstraints
from trilemma.search.training_rules import check_training_plan
from trilemma.search.training_space import usual_plan
from trilemma.workloads import TrainingWorkload


def single_training_plan(
    model: Model, accelerator: Accelerator, workload: TrainingWorkload, settled: TrainingConstraints, *, gpus: int
) -> TrainingPlan:
    """Degrees of one where nothing is said, replicas on the GPUs that are left, micro-batch 1, no recompute, usual recipe.

    QLoRA recomputes whole layers unless told otherwise: PEFT's prepare_model_for_kbit_training turns that on. Raises
    `InputError` with the fix where the plan is not legal.
    """
    degrees = {name: getattr(settled, name) or 1 for name in ("tp", "pp", "vpp", "ep", "cp")}
    taken = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if settled.dp is None and gpus % taken:
        given = " x ".join(f"`{name}` {degrees[name]}" for name in ("tp", "pp", "cp"))
        raise InputError(
            f"{given} is {taken}, which does not divide the {counted(gpus, 'GPU')} of `gpu`; use degrees that do"
        )
    layout = Layout(**degrees, dp=settled.dp or gpus // taken)
    plan = replace(
        usual_plan(model, accelerator, workload, settled),
        layout=layout,
        micro_batch=settled.micro_batch or 1,
        schedule=settled.schedule or ("interleaved" if layout.vpp > 1 else "1f1b"),
        recompute=settled.recompute or Recompute(mode="full" if workload.method == "qlora" else "none"),
    )
    check_training_plan(model, plan, workload, gpus=gpus)
    return plan
