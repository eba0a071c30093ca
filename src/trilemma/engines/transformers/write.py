"""A training plan to what the Trainer of Transformers, DeepSpeed and Accelerate read: flags and configuration files."""

from __future__ import annotations

import json
from typing import Any

import yaml

from trilemma.errors import InputError
from trilemma.models.architecture import Model
from trilemma.models.catalogue import hub_id
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import QLORA_FORMAT, TrainingWorkload

_OPTIMIZERS = {
    "adamw": "adamw_torch_fused", "adamw-like-weights": "adamw_torch_fused", "adamw-8bit": "adamw_bnb_8bit",
    "adamw-4bit": "adamw_torch_4bit", "adafactor": "adafactor", "sgd": "sgd", "lion": "lion_32bit", "muon": "muon",
    "adamw-bf16-moments": "adamw_anyprecision",
}  # fmt: skip
_ATTENTION = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}


def check(plan: TrainingPlan, *, to: str) -> None:
    """Raise `InputError` where the Trainer cannot run ``plan``."""
    layout = plan.layout
    degrees = {name: getattr(layout, name) for name in ("tp", "pp", "ep", "cp")}
    cut = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    if cut:
        raise InputError(
            f"--to {to} writes replicas, sharded or not, and the plan has {', '.join(cut)}; export it --to megatron, or search"
            f" with --engine {to}"
        )
    if plan.recompute.mode not in ("none", "full") or plan.recompute.layers is not None:
        raise InputError(
            f"--to {to}: the Trainer recomputes whole layers or nothing; plan with --recompute none or full"
        )
    if plan.optimizer.name not in _OPTIMIZERS:
        raise InputError(f"--to {to}: the Trainer has no optimizer {plan.optimizer.name}; use {', '.join(_OPTIMIZERS)}")


def accumulation(plan: TrainingPlan, workload: TrainingWorkload) -> int:
    """Micro-batches of a replica in an optimizer step."""
    return int(plan.micro_batches(workload))


def flags(*, model: Model, plan: TrainingPlan, workload: TrainingWorkload, precision: bool = True) -> list[str]:
    """Flags of a script on the Trainer (TRL's sft.py takes them all). ``precision`` False leaves it to a launcher's file."""
    words = ["--model_name_or_path", hub_id(model.name), "--max_length", str(workload.seq)]
    words += ["--per_device_train_batch_size", str(plan.micro_batch)]
    words += ["--gradient_accumulation_steps", str(accumulation(plan, workload))]
    words += ["--optim", _OPTIMIZERS[plan.optimizer.name]]
    words += ["--attn_implementation", _ATTENTION[plan.attention]]
    if precision and plan.recipe.activations != "fp32":
        words += [f"--{plan.recipe.activations}", "true"]
    if plan.recipe.weights in ("bf16", "fp16") and plan.recipe.master is None:
        words += ["--dtype", {"bf16": "bfloat16", "fp16": "float16"}[plan.recipe.weights]]
    words += ["--gradient_checkpointing", "true" if plan.recompute.mode == "full" else "false"]
    if plan.compiled:
        words += ["--torch_compile", "true"]
    if plan.loss == "fused":
        words += ["--use_liger_kernel", "true"]
    if plan.offload.activations:
        words += ["--activation_offloading", "true"]
    return [*words, *_adapter_flags(workload)]


def _adapter_flags(workload: TrainingWorkload) -> list[str]:
    if not workload.trains_adapters:
        return []
    words = ["--use_peft", "true", "--lora_r", str(workload.rank), "--lora_target_modules"]
    words += list(workload.targets) or ["all-linear"]
    if workload.held_format == QLORA_FORMAT:
        words += ["--load_in_4bit", "true"]
    if workload.method == "dora":
        words += ["--use_dora", "true"]
    if workload.method == "lora" and workload.base_format == "int8":
        words += ["--load_in_8bit", "true"]
    return words


def deepspeed_json(*, plan: TrainingPlan, workload: TrainingWorkload) -> str:
    """``ds_config.json``: stage, offload and precision; batch figures that agree with the script's flags."""
    recipe = plan.recipe
    zero: dict[str, Any] = {"stage": plan.zero, "overlap_comm": True, "contiguous_gradients": True}
    if plan.shard_group is not None:
        raise InputError("DeepSpeed shards over all ranks (MiCS was removed in 0.19); leave the shard group out")
    if plan.offload.optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if plan.offload.optimizer < 1:
            zero["offload_optimizer"]["ratio"] = plan.offload.optimizer
    if plan.offload.weights:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if plan.zero == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    document: dict[str, Any] = {
        "train_batch_size": workload.global_batch,
        "train_micro_batch_size_per_gpu": int(plan.micro_batch),
        "gradient_accumulation_steps": accumulation(plan, workload),
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    if recipe.activations in ("bf16", "fp16"):
        document[recipe.activations] = {"enabled": True}
        if recipe.gradients != recipe.activations:
            document["data_types"] = {"grad_accum_dtype": recipe.gradients}
    return json.dumps(document, indent=2) + "\n"


def accelerate_yaml(*, plan: TrainingPlan, gpus: int, gpus_per_node: int) -> str:
    """``accelerate.yaml``: FSDP2 where weights are sharded, replicas else."""
    machines = max(-(-gpus // gpus_per_node), 1)
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if plan.zero == 3 else ("MULTI_GPU" if gpus > 1 else "NO"),
        "mixed_precision": plan.recipe.activations if plan.recipe.activations in ("bf16", "fp16") else "no",
        "num_machines": machines,
        "num_processes": gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "c10d" if machines > 1 else "static",
        "same_network": True,
        "use_cpu": False,
    }
    if plan.zero == 3:
        document["fsdp_config"] = {
            "fsdp_version": 1 if plan.flat_parameters else 2,
            "fsdp_reshard_after_forward": plan.reshard,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_offload_params": bool(plan.offload.weights),
            "fsdp_activation_checkpointing": False,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        if plan.shard_group is not None and int(plan.shard_group) < int(plan.layout.dp):
            document["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": int(plan.layout.dp) // int(plan.shard_group),
                "parallelism_config_dp_shard_size": int(plan.shard_group),
            }
    elif plan.zero:
        raise InputError(f"Accelerate shards weights too (FSDP) or nothing, not --zero {plan.zero}; use --to deepspeed")
    return str(yaml.safe_dump(document, sort_keys=False))
