"""Fine-tuning commands and their files: DeepSpeed, Accelerate, Trainer flags, Axolotl."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from trilemma.engines.training import TrainingCommand, read_training
from trilemma.engines.transformers.write import accelerate_yaml, deepspeed_json, flags
from trilemma.errors import InputError
from trilemma.models.resolve import load_model
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Offload, Recompute, TrainingPlan
from trilemma.workloads import TrainingWorkload

FLAGS = "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 --max_length 2048 --bf16 true"
DS = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
}
FSDP = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_machines": 2,
    "num_processes": 16,
    "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False},
}
AXOLOTL = {
    "base_model": "NousResearch/Llama-2-7b-hf",
    "adapter": "qlora",
    "load_in_4bit": True,
    "lora_r": 32,
    "lora_target_linear": True,
    "sequence_len": 4096,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "optimizer": "paged_adamw_32bit",
    "bf16": "auto",
    "gradient_checkpointing": True,
    "flash_attention": True,
}


def saved(folder: Path, name: str, content: object) -> str:
    path = folder / name
    path.write_text(json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content))
    return str(path)


def deepspeed(folder: Path, content: object, more: str = "", gpus: int = 8) -> TrainingCommand:
    file = saved(folder, "ds.json", content)
    return read_training(
        "deepspeed", shlex.split(f"deepspeed --num_gpus {gpus} train.py --deepspeed {file} {FLAGS} {more}")
    )


def test_deepspeed_stage_3_with_offload(tmp_path: Path) -> None:
    found = deepspeed(tmp_path, DS, "--gradient_accumulation_steps 4 --gradient_checkpointing true")
    plan = found.plan
    assert (plan.zero, plan.layout.dp, plan.micro_batch, plan.implementation) == (3, 8, 2, "deepspeed")
    assert plan.offload == Offload(optimizer=1.0, weights=1.0)
    assert plan.recipe.gradients == "bf16"
    assert plan.recompute == Recompute(mode="full")
    assert found.workload.global_batch == 2 * 4 * 8


def test_deepspeed_config_flag_and_silent_keys(tmp_path: Path) -> None:
    file = saved(tmp_path, "ds.json", {**DS, "zero_optimisation": {"stage": 2}})
    found = read_training(
        "deepspeed", shlex.split(f"deepspeed --num_gpus 4 train.py --deepspeed --deepspeed_config {file} {FLAGS}")
    )
    assert found.unknown_flags == ("zero_optimisation",)
    assert "did you mean zero_optimization" in found.warnings[0].message


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        ({"train_batch_size": 100}, "", "train_batch_size 100 is not a multiple of micro-batch 2 x 8"),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, "", "use 32"),
        ({"train_micro_batch_size_per_gpu": 4}, "", "make them equal"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": False}}, "", "make them agree"),
        ({"zero_optimization": {"stage": 5}}, "", "zero_optimization.stage 5 is out of range"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": -1}}}, "", "ratio -1"),
        ({"zero_optimization": []}, "", "zero_optimization is not an object"),
        ({"train_batch_size": float("nan")}, "", "train_batch_size nan is not a whole number"),
        ({"data_types": {"grad_accum_dtype": "fp4"}}, "", "grad_accum_dtype 'fp4'"),
    ],
)
def test_bad_deepspeed_files(tmp_path: Path, change: dict[str, object], more: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        deepspeed(tmp_path, {**DS, **change}, more)


def accelerate(folder: Path, content: object, more: str = "") -> TrainingCommand:
    file = saved(folder, "fsdp.yaml", content)
    return read_training("accelerate", shlex.split(f"accelerate launch --config_file {file} train.py {FLAGS} {more}"))


def test_accelerate_fsdp2(tmp_path: Path) -> None:
    found = accelerate(tmp_path, FSDP, "--gradient_accumulation_steps 2")
    assert (found.gpus, found.plan.zero, found.plan.reshard, found.plan.recipe.name) == (16, 3, True, "fsdp")
    assert found.plan.optimizer == optimizer("adamw-like-weights")
    assert found.workload.global_batch == 2 * 2 * 16


@pytest.mark.parametrize(
    ("fsdp", "parallel", "group", "zero", "reshard"),
    [
        ({"fsdp_sharding_strategy": "FULL_SHARD"}, {}, None, 3, True),
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, {}, None, 3, False),
        ({"fsdp_sharding_strategy": "HYBRID_SHARD"}, {}, 8, 3, True),
        ({"fsdp_sharding_strategy": "NO_SHARD"}, {}, None, 0, True),
        (
            {"fsdp_version": 2},
            {"parallelism_config_dp_replicate_size": 4, "parallelism_config_dp_shard_size": 4},
            4,
            3,
            True,
        ),
    ],
)
def test_accelerate_strategies(
    tmp_path: Path, fsdp: dict[str, object], parallel: dict[str, object], group: int | None, zero: int, reshard: bool
) -> None:
    found = accelerate(tmp_path, {**FSDP, "fsdp_config": fsdp, "parallelism_config": parallel})
    assert (found.plan.shard_group, found.plan.zero, found.plan.reshard) == (group, zero, reshard)


def test_accelerate_with_a_deepspeed_part(tmp_path: Path) -> None:
    part = {"zero_stage": 2, "offload_optimizer_device": "cpu", "gradient_accumulation_steps": 4}
    found = accelerate(tmp_path, {**FSDP, "distributed_type": "DEEPSPEED", "fsdp_config": {}, "deepspeed_config": part})
    assert (found.plan.zero, found.plan.offload.optimizer, found.workload.global_batch) == (2, 1.0, 2 * 4 * 16)


def test_launch_flags_go_over_the_file(tmp_path: Path) -> None:
    file = saved(tmp_path, "fsdp.yaml", FSDP)
    words = f"accelerate launch --config_file {file} --num_processes 8 --num_machines 1 train.py {FLAGS}"
    assert read_training("accelerate", shlex.split(words)).gpus == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_processes": -8}, "num_processes -8 is out of range"),
        ({"num_processes": float("nan")}, "num_processes nan is not a whole number"),
        ({"distributed_type": "TPU"}, "distributed_type 'TPU' is not read"),
        ({"mixed_precision": "int4"}, "mixed_precision 'int4'"),
        ({"fsdp_config": {"fsdp_sharding_strategy": "MOST"}}, "'MOST' is not known"),
        ({"fsdp_config": {"fsdp_version": 3}}, "fsdp_version 3 is out of range"),
        ({"fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": "maybe"}}, "neither true nor false"),
    ],
)
def test_bad_accelerate_files(tmp_path: Path, change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        accelerate(tmp_path, {**FSDP, **change})


def test_trainer_flags_alone() -> None:
    words = f"torchrun --nproc_per_node 4 sft.py {FLAGS} --use_peft --lora_r 64 --load_in_4bit --optim paged_adamw_8bit"
    found = read_training(
        "transformers", shlex.split(words + " --gradient-checkpointing --attn_implementation flash_attention_2")
    )
    assert (found.workload.method, found.workload.rank) == ("qlora", 64)
    assert found.workload.targets == ("q_proj", "v_proj")
    assert (found.plan.attention, found.plan.recompute.mode, found.plan.zero) == ("flash", "full", 0)
    assert found.plan.optimizer == replace(optimizer("adamw-8bit"), paged=True)


def test_trainer_defaults_are_told() -> None:
    found = read_training(
        "transformers", shlex.split("python sft.py --model_name_or_path gpt2 --per_device_train_batch_size 4")
    )
    assert found.workload.seq == 1024
    assert [warning.code for warning in found.warnings] == ["assumed-length"]


def test_axolotl_qlora(tmp_path: Path) -> None:
    file = saved(tmp_path, "qlora.yml", AXOLOTL)
    found = read_training("axolotl", shlex.split(f"axolotl train {file}"), gpus=1)
    assert (found.workload.method, found.workload.rank, found.workload.targets) == ("qlora", 32, ())
    assert (found.workload.seq, found.workload.global_batch) == (4096, 8)
    assert found.plan.implementation == "axolotl"
    launched = shlex.split(f"accelerate launch --num_processes 8 -m axolotl.cli.train {file}")
    assert read_training("accelerate", launched).workload.global_batch == 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sequence_len": float("nan")}, "sequence_len nan is not a whole number"),
        ({"micro_batch_size": -1}, "micro_batch_size -1 is out of range"),
        ({"lora_r": None}, "adapter qlora needs lora_r"),
        ({"adapter": "ia3"}, "adapter 'ia3' is not read"),
        ({"base_model": None}, "base_model is missing"),
        ({"gradient_checkpointing": "sometimes"}, "gradient_checkpointing 'sometimes'"),
        ({"tensor_parallel_size": 3}, "does not divide the 8 GPUs"),
        ({"plugins": 3}, "plugins '3' is not a list"),
        ({"fsdp": 2.5}, "fsdp '2.5' is not a list"),
    ],
)
def test_bad_axolotl_files(tmp_path: Path, change: dict[str, object], words: str) -> None:
    file = saved(tmp_path, "bad.yml", {**AXOLOTL, **change})
    with pytest.raises(InputError, match=words):
        read_training("axolotl", shlex.split(f"axolotl train {file}"), gpus=8)


def test_written_deepspeed_and_accelerate_read_back_the_same_plan(tmp_path: Path) -> None:
    model, workload = load_model("llama-3.1-8b"), TrainingWorkload(seq=2048, global_batch=64)
    plan = TrainingPlan(
        layout=Layout(dp=8), micro_batch=2, implementation="deepspeed", recipe=recipe("zero-bf16"), sp=False, zero=2,
        optimizer=optimizer("adamw"), attention="sdpa", offload=Offload(optimizer=0.5), recompute=Recompute(mode="full"),
    )  # fmt: skip
    (tmp_path / "ds.json").write_text(deepspeed_json(plan=plan, workload=workload))
    words = flags(model=model, plan=plan, workload=workload)
    found = read_training(
        "deepspeed", ["deepspeed", "--num_gpus", "8", "train.py", "--deepspeed", str(tmp_path / "ds.json"), *words]
    )
    capped = replace(workload, examples="capped")  # what a trainer takes is the longest example
    assert (found.plan, found.workload, found.unknown_flags) == (plan, capped, ())

    plan = TrainingPlan(
        layout=Layout(dp=16), implementation="accelerate", recipe=recipe("fsdp"), sp=False, zero=3, shard_group=8,
        optimizer=optimizer("adamw-like-weights"), attention="flash",
    )  # fmt: skip
    (tmp_path / "a.yaml").write_text(accelerate_yaml(plan=plan, gpus=16, gpus_per_node=8))
    words = flags(model=model, plan=plan, workload=workload)
    found = read_training(
        "accelerate", ["accelerate", "launch", "--config_file", str(tmp_path / "a.yaml"), "train.py", *words]
    )
    assert (found.plan, found.workload, found.unknown_flags, found.gpus) == (plan, capped, (), 16)
