"""A training plan to the command line of torchtitan 0.3: a named configuration and what differs from it."""

from __future__ import annotations

from trilemma.engines.torchtitan.read import SCHEDULES
from trilemma.engines.training import framework_facts
from trilemma.errors import InputError
from trilemma.models.architecture import Model
from trilemma.models.resolve import resolve_name
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

_RECOMPUTE = {"none": "none", "op": "selective", "full": "full"}


def write(*, model: Model, plan: TrainingPlan, workload: TrainingWorkload) -> list[str]:
    """Words behind ``-m torchtitan.train``. Raises `InputError` for models and options that torchtitan has not."""
    if workload.trains_adapters:
        raise InputError(f"--to torchtitan writes no {workload.method} training; use --to accelerate or --to deepspeed")
    layout, dp, cp = plan.layout, int(plan.layout.dp), int(plan.layout.cp)
    name = _configuration(model, plan)
    row = framework_facts("torchtitan")["config"][name]
    if plan.recompute.mode not in _RECOMPUTE or plan.recompute.layers is not None:
        raise InputError("torchtitan recomputes by operator or whole layers; use --recompute none or full")
    if plan.zero not in (0, 3):
        raise InputError(f"torchtitan shards weights too (FSDP2) or nothing, not --zero {plan.zero}; use --zero 3")
    group = plan.shard_group if plan.shard_group is not None else (dp * cp if plan.zero == 3 else cp)
    if int(group) % cp:
        raise InputError(f"torchtitan shards over whole context groups; a group of {group} is no multiple of cp {cp}")
    shard = int(group) // cp
    module, config = name.split("/")
    micro = int(plan.micro_batch)
    local = micro if layout.pp == 1 else workload.global_batch // dp
    words = ["--module", module, "--config", config]
    words += ["--training.seq_len", str(workload.seq), "--training.local_batch_size", str(local)]
    words += ["--training.global_batch_size", str(workload.global_batch)]
    words += ["--parallelism.data_parallel_replicate_degree", str(dp // shard)]
    words += ["--parallelism.data_parallel_shard_degree", str(shard)]
    words += ["--parallelism.tensor_parallel_degree", str(layout.tp)]
    words += ["--parallelism.context_parallel_degree", str(cp)]
    words += ["--parallelism.expert_parallel_degree", str(layout.ep)]
    words += _pipeline(plan, model)
    if layout.tp > 1 and not plan.sp:
        words += ["--parallelism.no-enable-sequence-parallel"]
    if plan.zero == 3 and plan.reshard != (layout.pp == 1):
        words += ["--parallelism.fsdp_reshard_after_forward", "always" if plan.reshard else "never"]
    words += _numbers(plan)
    words += ["--compile.enable", "--compile.components", "model,loss"] if plan.compiled else []
    words += ["--compile.no-enable"] if not plan.compiled and row.get("compile") else []
    if plan.overlap_tensor and plan.compiled:
        words += ["--compile.enable-async-tensor-parallel"]
    if plan.offload.any:
        words += ["--training.enable-cpu-offload"]
    if plan.loss == "chunked":
        words += ["--loss.num-chunks", str(plan.loss_chunks)]
    return [*words, f"activation-checkpoint:{_RECOMPUTE[plan.recompute.mode]}"]


def _configuration(model: Model, plan: TrainingPlan) -> str:
    """The configuration of torchtitan's registry that trains this model with these matrix products."""
    wanted = _entry(model.name)
    rows = framework_facts("torchtitan")["config"]
    same = {name: row for name, row in rows.items() if row["model"] == wanted}
    if not same:
        known = ", ".join(sorted({row["model"] for row in rows.values()}))
        raise InputError(f"torchtitan has no configuration of {model.name}; it has {known}")
    matmul = "" if plan.recipe.matmul == "same" else plan.recipe.matmul
    found = [name for name, row in same.items() if row.get("matmul", "") == matmul and row.get("loss_chunks", 0)]
    if not found:
        raise InputError(
            f"torchtitan's configurations of {model.name} have no {plan.recipe.matmul} matrix products; they are set in"
            " Python (a converter of the model's configuration)"
        )
    return str(min(found, key=len))


def _entry(name: str) -> str:
    try:
        return resolve_name(name)[0]
    except InputError:
        return name


def _pipeline(plan: TrainingPlan, model: Model) -> list[str]:
    layout = plan.layout
    if layout.pp == 1:
        return []
    chunked = layout.vpp > 1
    names = [key for key, (schedule, several) in SCHEDULES.items() if schedule == plan.schedule and several == chunked]
    if not names:
        raise InputError(
            f"torchtitan has no schedule {plan.schedule} with {layout.vpp} chunks; use 1f1b or interleaved"
        )
    # CUDA graphs refuse pipelines (torchtitan/trainer.py, Config.__post_init__).
    words = ["--training.disable-cuda-graphs", "--parallelism.pipeline_parallel_degree", str(layout.pp)]
    words += ["--parallelism.pipeline_parallel_schedule", names[0]]
    words += ["--parallelism.pipeline_parallel_microbatch_size", str(plan.micro_batch)]
    if layout.vpp > 2:
        words += _layers_per_stage(len(model.layers), int(layout.pp * layout.vpp))
    return words


def _layers_per_stage(layers: int, stages: int) -> list[str]:
    """Layers of a stage that make torchtitan count ``stages``; embedding and head weigh as a layer each, or as nothing."""
    for ends in (1, 0):
        for size in range(layers, 0, -1):
            if -(-(layers + 2 * ends) // size) == stages:
                words = ["--parallelism.pipeline_parallel_layers_per_stage", str(size)]
                less = ("first", "last") if not ends else ()
                return [
                    *words,
                    *(
                        word
                        for one in less
                        for word in (f"--parallelism.pipeline_parallel_{one}_stage_less_layers", "0")
                    ),
                ]
    raise InputError(
        f"torchtitan cannot cut {layers} layers into {stages} stages of one size; plan with another --pp or --vpp"
    )


def _numbers(plan: TrainingPlan) -> list[str]:
    """Number formats: FP32 shards cast to BF16, or everything in BF16."""
    recipe, words = plan.recipe, []
    if recipe.weights == "bf16" and recipe.master is None:
        words += ["--training.dtype", "bfloat16"]
    elif recipe.weights != "fp32":
        raise InputError(
            f"torchtitan keeps FP32 or BF16 weights alone, not the recipe {recipe.name}; use fsdp or pure-bf16"
        )
    elif recipe.gathered == "fp32":
        words += ["--training.mixed_precision_param", "float32"]
    if plan.optimizer.name == "adamw-bf16-moments":
        return [*words, "--optimizer.implementation", "fused_opt_states_bf16"]
    if not plan.optimizer.name.startswith("adamw"):
        raise InputError(f"torchtitan's optimizer {plan.optimizer.name} is set in Python; use adamw")
    return words
