"""Trainers around Megatron-Core: ms-swift's ``megatron`` commands and Megatron-Bridge's recipes."""

import shlex
from typing import Any

import pytest

from trilemma.engines.extract import extract
from trilemma.engines.training import TrainingCommand, framework_facts, read_training
from trilemma.errors import InputError, UnknownName
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import training_memory

SWIFT = "NPROC_PER_NODE=8 megatron"
BRIDGE = "torchrun --nproc_per_node 8 scripts/training/run_recipe.py"


def read(words: str, gpus: int = 8) -> TrainingCommand:
    framework, own = extract(shlex.split(words))
    return read_training(framework, own, gpus=gpus)


def shape(found: TrainingCommand) -> dict[str, Any]:
    plan, load = found.plan, found.workload
    layout = {name: int(getattr(plan.layout, name)) for name in ("tp", "pp", "vpp", "cp", "ep", "dp")}
    return {
        **layout, "gpus": found.gpus, "seq": load.seq, "batch": load.global_batch, "micro": int(plan.micro_batch),
        "again": plan.recompute.mode, "zero": plan.zero, "sp": plan.sp, "method": load.method, "rank": load.rank,
        "matmul": plan.recipe.matmul, "beside": tuple(one.name for one in plan.companions), "model": found.model,
    }  # fmt: skip


COMMANDS: list[tuple[str, dict[str, Any]]] = [
    # ms-swift: micro-batch 1, batch 16, selective recomputation, sharded optimizer, experts whole.
    (f"{SWIFT} sft --model Qwen/Qwen3-8B --max_length 4096",
     {"gpus": 8, "dp": 8, "micro": 1, "batch": 16, "again": "selective", "zero": 1}),
    (f"{SWIFT} sft --model Qwen/Qwen3-30B-A3B --tensor_model_parallel_size 2 --expert_model_parallel_size 8"
     " --sequence_parallel true"
     " --global_batch_size 32 --max_length 8192 --recompute_granularity full --recompute_method uniform --recompute_num_layers 1",
     {"tp": 2, "ep": 8, "dp": 4, "sp": True, "batch": 32, "again": "full"}),
    (f"{SWIFT} pt --model Qwen/Qwen2.5-7B --pipeline_model_parallel_size 2 --micro_batch_size 2 --max_length 2048",
     {"pp": 2, "micro": 2}),
    (f"{SWIFT} sft --model Qwen/Qwen2.5-14B --tuner_type lora --lora_rank 16 --target_modules all-linear --max_length 2048",
     {"method": "lora", "rank": 16}),
    (f"{SWIFT} rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --tensor_model_parallel_size 4 --max_length 2048",
     {"micro": 2, "batch": 32, "beside": ("reference model",)}),
    (f"{SWIFT} rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --vllm_mode colocate --vllm_gpu_memory_utilization 0.4"
     " --sleep_level 1 --max_length 2048", {"beside": ("reference model", "generation engine")}),
    (f"{SWIFT} sft --load Qwen2.5-7B-mcore --model Qwen/Qwen2.5-7B-Instruct --context_parallel_size 2 --max_length 32768",
     {"cp": 2}),
    ("NNODES=2 NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-72B --tensor_model_parallel_size 8 --optimizer_cpu_offload true"
     " --use_precision_aware_optimizer true --optimizer_offload_fraction 0.7 --max_length 4096", {"gpus": 16, "tp": 8}),
    (f"{SWIFT} sft --model Qwen/Qwen3-8B --fp8_format hybrid --fp8_recipe blockwise --max_length 4096", {"matmul": "fp8_block"}),
    (f"{SWIFT} sft --model Qwen/Qwen3-8B --recompute_granularity none --max_length 1024 --train_iters 100", {"again": "none"}),
    # Megatron-Bridge: layout, batch and precision of a recipe, flags and dotted keys over it.
    (f"{BRIDGE} --recipe llama3_8b_pretrain_2gpu_h100_bf16_config",
     {"model": "meta-llama/Meta-Llama-3-8B", "cp": 2, "seq": 8192}),
    (f"{BRIDGE} --recipe llama3_8b_pretrain_config -tp 2 -cp 1 -gb 128 -sl 4096", {"tp": 2, "cp": 1, "batch": 128, "seq": 4096}),
    (f"{BRIDGE} --recipe qwen3_8b_sft_config --mode sft", {"method": "full"}),
    (f"{BRIDGE} --recipe llama3_8b_peft_config --mode lora", {"method": "lora", "rank": 32}),
    (f"{BRIDGE} --recipe llama3_8b_peft_config --mode dora", {"method": "dora"}),
    (f"{BRIDGE} --recipe llama3_8b_pretrain_2gpu_h100_fp8cs_config", {"matmul": "fp8_tensor"}),
    ("./scripts/training/train.sh --nodes 4 --gpus-per-node 8 --recipe llama3_70b_pretrain_config --mode pretrain",
     {"gpus": 32, "model": "meta-llama/Meta-Llama-3-70B"}),
    ("./scripts/training/train.sh --nodes 2 --gpus-per-node 8 --model qwen3_30b_a3b --mode pretrain --dataset mock",
     {"gpus": 16, "model": "Qwen/Qwen3-30B-A3B"}),
    (f"{BRIDGE} --model gpt_oss_20b --mode sft train.global_batch_size=64 train.micro_batch_size=2", {"batch": 64, "micro": 2}),
    (f"{BRIDGE} --recipe llama3_8b_pretrain_config model.recompute_granularity=full model.context_parallel_size=1",
     {"again": "full"}),
    ("python scripts/training/run_recipe.py --recipe deepseek_v3_pretrain_config", {"model": "deepseek-ai/DeepSeek-V3"}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), COMMANDS)
def test_commands_are_read(words: str, expected: dict[str, Any]) -> None:
    found = read(words, gpus=1024 if "deepseek" in words else 8)
    assert {key: value for key, value in shape(found).items() if key in expected} == expected
    assert found.unknown_flags == ()


def test_ten_commands_of_each() -> None:
    owners = [extract(shlex.split(words))[0] for words, _ in COMMANDS]
    assert min(owners.count("swift-megatron"), owners.count("megatron-bridge")) >= 10


@pytest.mark.slow
def test_every_recipe_is_read_unless_its_model_is_unknown() -> None:
    recipes = framework_facts("megatron_bridge")["recipes"]
    unknown = set()
    for name, row in recipes.items():
        nodes = max(row.get("gpus", 8) // 8, 1)
        try:
            found = read(f"torchrun --nproc_per_node 8 --nnodes {nodes} run_recipe.py --recipe {name}")
            assert found.workload.seq == row["seq"]
        except UnknownName:
            unknown.add(row["model"])
    assert len(unknown) < 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{SWIFT} sft --max_length 2048", "names no model"),
        (f"{SWIFT} sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 3 --max_length 2048", "does not divide the 8 GPUs"),
        (f"{BRIDGE} --recipe llama9_8b_pretrain_config", "unknown Megatron-Bridge recipe"),
        (f"{BRIDGE} --mode sft", "names no recipe"),
        (f"{BRIDGE} --recipe llama3_8b_pretrain_config --mode later", "--mode 'later' is not known"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(words: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(words)


@pytest.mark.parametrize(("words", "loss"), [
    # swift/megatron/arguments/megatron_args.py at 3602360a: cross_entropy_loss_fusion True, native; heads of a few rows.
    ("sft", "compiled"),
    ("sft --cross_entropy_loss_fusion false", "full"),
    ("sft --cross_entropy_fusion_impl te", "full"),
    ("sft --task_type seq_cls --num_labels 2", "none"),
    ("sft --task_type embedding", "none"),
    ("rlhf --rlhf_type rm", "none"),
    ("rlhf --rlhf_type kto", "compiled"),
])  # fmt: skip
def test_how_ms_swift_makes_a_loss(words: str, loss: str) -> None:
    command = f"NPROC_PER_NODE=2 megatron {words} --model Qwen/Qwen2.5-7B-Instruct --max_length 8192"
    assert read(command, gpus=2).plan.loss == loss


@pytest.mark.parametrize("command", [
    "trl reward --model_name_or_path Qwen/Qwen2.5-7B-Instruct",
    "swift rlhf --rlhf_type rm --model Qwen/Qwen2.5-7B-Instruct",
    "swift sft --task_type reranker --model Qwen/Qwen2.5-7B-Instruct",
    "llamafactory-cli train --stage rm --model_name_or_path Qwen/Qwen2.5-7B-Instruct --bf16",
])  # fmt: skip
def test_rewards_classes_and_embeddings_make_no_logits(command: str) -> None:
    found = read(command, gpus=1)
    assert found.plan.loss == "none"
    assert found.architecture is not None
    memory = training_memory(found.architecture, Cluster.of(find("h200-sxm"), 1), found.plan, found.workload)
    assert "logits" not in {line.name for line in memory.ledger}
