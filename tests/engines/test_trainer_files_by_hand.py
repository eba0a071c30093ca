"""Keys of the files and flags of trainers, each with what it means by the trainer's own documentation, and its range's edges.

DeepSpeed config JSON (deepspeed.readthedocs.io), `accelerate config` (utils/dataclasses.py), Axolotl (docs.axolotl.ai),
LLaMA-Factory (hparams/finetuning_args.py), ms-swift (arguments), OpenRLHF (cli), torchtune (recipes), Megatron-LM (arguments.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trilemma.engines.training import TrainingCommand, read_training
from trilemma.errors import InputError
from trilemma.plans import Layout, Offload, Recompute

QWEN = "Qwen/Qwen2.5-7B-Instruct"
SCRIPT = f"train.py --model_name_or_path {QWEN} --per_device_train_batch_size 2 --max_length 2048 --bf16"
GPT = (
    "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
    " --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096"
    " --micro-batch-size 1 --global-batch-size 64 --swiglu --vocab-size 128256 --untie-embeddings-and-output-weights --bf16"
)


def at(value: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        value = value[int(name)] if name.isdigit() else getattr(value, name)
    return value


def checked(found: TrainingCommand, expected: dict[str, Any]) -> None:
    assert {name: at(found, name) for name in expected} == expected


def by_deepspeed(folder: Path, document: dict[str, Any], script: str = SCRIPT) -> TrainingCommand:
    path = folder / "d.json"
    path.write_text(json.dumps({"bf16": {"enabled": "auto"}, **document}))
    return read_training("deepspeed", f"deepspeed --num_gpus 8 {script} --deepspeed {path}".split())


#: Document → what it sets.
DEEPSPEED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"plan.zero": 0, "plan.offload": Offload(), "workload.global_batch": 16}),
    ({"zero_optimization": None}, {"plan.zero": 0}),
    ({"zero_optimization": {"stage": 3}}, {"plan.zero": 3, "plan.shard_group": None, "plan.offload": Offload()}),
    ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
     {"plan.offload": Offload(optimizer=1.0)}),
    ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}},
     {"plan.offload": Offload(optimizer=1.0)}),
    ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}}, {"plan.offload": Offload()}),
    ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.25}}},
     {"plan.offload": Offload(optimizer=0.25)}),
    ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 1}}},
     {"plan.offload": Offload(optimizer=1.0)}),
    ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {"plan.offload": Offload(optimizer=1.0)}),
    ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, {"plan.offload": Offload(weights=1.0)}),
    ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, {"plan.offload": Offload()}),
    ({"zero_optimization": {"stage": 3, "mics_shard_size": 4}}, {"plan.shard_group": 4}),
    ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}, {"workload.global_batch": 32}),
    ({"gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": "auto"}, {"workload.global_batch": 64}),
    ({"optimizer": {"type": "SGD"}}, {"plan.optimizer.name": "sgd"}),
    ({"optimizer": {"type": "Adam"}}, {"plan.optimizer.name": "adamw"}),
    ({"optimizer": {"type": "OneBitAdam"}}, {"plan.optimizer.name": "adamw"}),
    ({"optimizer": {"type": "Muon"}}, {"plan.optimizer.name": "muon"}),
    ({"optimizer": {"type": "Lion"}}, {"plan.optimizer.name": "lion"}),
    ({"optimizer": {"type": "auto"}}, {"plan.optimizer.name": "adamw"}),
    ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, {"plan.recipe.gradients": "fp32"}),
    ({"tensor_parallel": {"autotp_size": 2}}, {"plan.layout.tp": 2, "plan.layout.dp": 4}),
    ({"tensor_parallel": {"autotp_size": 0}}, {"plan.layout.tp": 1, "plan.layout.dp": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("document", "expected"), DEEPSPEED)
def test_a_deepspeed_file(document: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    checked(by_deepspeed(tmp_path, document), expected)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"zero_optimization": [3]}, "zero_optimization is not an object"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 1.01}}},
            r"offload_optimizer.ratio 1.01 is out of range",
        ),
        ({"data_types": {"grad_accum_dtype": "fp8"}}, "grad_accum_dtype 'fp8' is none of"),
    ],
)
def test_what_a_deepspeed_file_cannot_say(document: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        by_deepspeed(tmp_path, document)


def test_keys_that_deepspeed_has_not_are_named(tmp_path: Path) -> None:
    found = by_deepspeed(tmp_path, {"zero_optimisation": {}, "zero_optimization": {"stage": 1, "overlap_com": True}})
    assert set(found.unknown_flags) == {"zero_optimisation", "zero_optimization.overlap_com"}


def by_accelerate(folder: Path, text: str) -> TrainingCommand:
    path = folder / "a.yml"
    path.write_text(text)
    return read_training("accelerate", f"accelerate launch --config_file {path} {SCRIPT}".split())


FSDP = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"
ACCELERATE: list[tuple[str, dict[str, Any]]] = [
    ("num_processes: 8\n", {"plan.zero": 0, "plan.layout.dp": 8}),
    ("distributed_type: MULTI_GPU\nnum_processes: 16\nnum_machines: 2\n", {"gpus": 16, "gpus_per_node": 8}),
    (FSDP, {"plan.zero": 3, "plan.reshard": True, "plan.flat_parameters": False}),
    (FSDP + "  fsdp_reshard_after_forward: false\n", {"plan.zero": 3, "plan.reshard": False}),
    (FSDP + "  fsdp_offload_params: true\n", {"plan.offload": Offload(optimizer=1.0, weights=1.0)}),
    (FSDP.replace("fsdp_version: 2", "fsdp_version: 1"), {"plan.flat_parameters": True}),
    (FSDP + "parallelism_config:\n  parallelism_config_tp_size: 2\n", {"plan.layout": Layout(tp=2, dp=4)}),
    (FSDP + "parallelism_config:\n  parallelism_config_cp_size: 2\n", {"plan.layout": Layout(cp=2, dp=4)}),
    (FSDP + "parallelism_config:\n  parallelism_config_sp_size: 4\n", {"plan.layout": Layout(cp=4, dp=2)}),
    (FSDP + "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 4\n",
     {"plan.shard_group": 4, "plan.layout": Layout(dp=8)}),
    (FSDP + "parallelism_config:\n  parallelism_config_dp_replicate_size: 1\n  parallelism_config_dp_shard_size: 8\n",
     {"plan.shard_group": None}),
    ("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n", {"plan.zero": 3}),
    ("distributed_type: DEEPSPEED\nnum_processes: 8\n", {"plan.zero": 2}),
    ("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n"
     "  offload_param_device: none\n", {"plan.offload": Offload(optimizer=1.0)}),
    ("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n  offload_param_device: cpu\n",
     {"plan.offload": Offload(weights=1.0)}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ACCELERATE)
def test_an_accelerate_file(text: str, expected: dict[str, Any], tmp_path: Path) -> None:
    checked(by_accelerate(tmp_path, text), expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- 1\n", "holds no mapping; give a file that accelerate config wrote"),
        ("distributed_type: MEGATRON_LM\n", "MEGATRON_LM is not read"),
        ("distributed_type: TPU\n", "'TPU' is not read"),
        ("distributed_type: FSDP\nfsdp_config: [1]\n", "fsdp_config is not a mapping"),
        ("mixed_precision: bf8\n", "mixed_precision 'bf8' is none of"),
        ("num_processes: 0\n", "num_processes"),
        ("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 4}\n", "zero_stage"),
    ],
)
def test_what_an_accelerate_file_cannot_say(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        by_accelerate(tmp_path, text)


def by_axolotl(folder: Path, text: str, more: str = "") -> TrainingCommand:
    path = folder / "a.yml"
    path.write_text(f"base_model: {QWEN}\nsequence_len: 2048\n{text}\n")
    return read_training("axolotl", f"axolotl train {path} {more}".split(), gpus=8)


AXOLOTL: list[tuple[str, str, dict[str, Any]]] = [
    ("", "", {"plan.micro_batch": 1, "workload.seq": 2048, "workload.method": "full", "plan.attention": "sdpa",
              "plan.recompute": Recompute(), "plan.loss": "full", "plan.compiled": False}),
    ("micro_batch_size: 4\ngradient_accumulation_steps: 2", "", {"plan.micro_batch": 4, "workload.global_batch": 64}),
    ("micro_batch_size: 2", "--micro_batch_size 3", {"plan.micro_batch": 3}),
    ("gradient_checkpointing: true", "", {"plan.recompute": Recompute(mode="full")}),
    ("gradient_checkpointing: true", "--gradient_checkpointing false", {"plan.recompute": Recompute()}),
    ("", "--gradient_checkpointing", {"plan.recompute": Recompute(mode="full")}),
    ("gradient_checkpointing: offload", "", {"plan.recompute": Recompute(mode="full"),
     "plan.offload.activations": 1.0}),
    ("gradient_checkpointing: unsloth", "", {"plan.recompute": Recompute(mode="full")}),
    ("flash_attention: true", "", {"plan.attention": "flash"}),
    ("xformers_attention: true", "", {"plan.attention": "flash"}),
    ("attn_implementation: flash_attention_2", "", {"plan.attention": "flash"}),
    ("eager_attention: true", "", {"plan.attention": "eager"}),
    ("attn_implementation: eager", "", {"plan.attention": "eager"}),
    ("liger_fused_linear_cross_entropy: true", "", {"plan.loss": "fused"}),
    ("cut_cross_entropy: true", "", {"plan.loss": "fused"}),
    ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]", "", {"plan.loss": "fused"}),
    ("chunked_cross_entropy: true", "", {"plan.loss": "chunked"}),
    ("chunked_cross_entropy: false", "", {"plan.loss": "full"}),
    ("torch_compile: auto", "", {"plan.compiled": True}),
    ("adapter: lora\nlora_r: 16", "",
     {"workload.method": "lora", "workload.rank": 16, "workload.targets": ("q_proj", "v_proj"), "workload.base_format": None}),
    ("adapter: lora\nlora_r: 16\nlora_target_linear: true", "", {"workload.targets": ()}),
    ("adapter: lora\nlora_r: 16\nlora_target_modules: all-linear", "", {"workload.targets": ()}),
    ("adapter: lora\nlora_r: 16\nlora_target_modules: [q_proj, o_proj]", "", {"workload.targets": ("q_proj",
     "o_proj")}),
    ("adapter: lora\nlora_r: 16\nload_in_8bit: true", "", {"workload.method": "lora", "workload.base_format": "int8"}),
    ("adapter: qlora\nlora_r: 16\nload_in_4bit: true", "", {"workload.method": "qlora"}),
    ("adapter: lora\nlora_r: 16\npeft_use_dora: true", "", {"workload.method": "dora"}),
    ("tensor_parallel_size: 2", "", {"plan.layout.tp": 2, "plan.layout.dp": 4}),
    ("context_parallel_size: 2", "", {"plan.layout.cp": 2}),
    ("sequence_parallel_degree: 4", "", {"plan.layout.cp": 4}),
    ("max_steps: 10", "", {"workload.tokens": 10 * 8 * 2048}),
    ("max_steps: -1", "", {"workload.tokens": None}),
    ("fsdp: [full_shard, auto_wrap]", "", {"plan.zero": 3}),
    ("fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: false", "", {"plan.zero": 3, "plan.reshard": False}),
    ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\ndp_shard_size: 4\ndp_replicate_size: 2", "",
     {"plan.shard_group": 4}),
    ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\ndp_shard_size: 8\ndp_replicate_size: 1", "",
     {"plan.shard_group": None}),
    ("rl: dpo", "", {"workload.global_batch": 2 * 8, "plan.companions.0.name": "reference model"}),
    ("rl: orpo", "", {"plan.companions": ()}),
    ("rl: kto", "", {"plan.companions.0.name": "reference model"}),
    ("rl: dpo\nadapter: lora\nlora_r: 8", "", {"plan.companions": ()}),
    ("rl: dpo\nprecompute_ref_log_probs: true", "", {"plan.companions": ()}),
    ("rl: grpo\ntrl: {beta: 0.1, use_vllm: true, vllm_mode: server}", "",
     {"plan.companions.0.name": "reference model"}),
    ("rl: grpo\ntrl: {beta: 0.0, use_vllm: true}", "", {"plan.companions": ()}),
    ("rl: grpo\ntrl: {max_completion_length: 4096, use_vllm: true}", "", {"workload.seq": 4096}),
    ("rl: grpo\ntrl: {max_completion_length: 100, use_vllm: true}", "", {"workload.seq": 2048}),
    ("rl: grpo\ntrl: {use_vllm: true, vllm_mode: colocate, vllm_gpu_memory_utilization: 0.25}", "",
     {"plan.companions.0.share": 0.25, "plan.companions.0.asleep": False}),
    ("rl: grpo\ntrl: {use_vllm: true, vllm_mode: colocate, vllm_enable_sleep_mode: true}\n"
     "vllm: {gpu_memory_utilization: 0.5}", "",
     {"plan.companions.0.share": 0.5, "plan.companions.0.asleep": True}),
    ("rl: none", "", {"plan.companions": ()}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "more", "expected"), AXOLOTL)
def test_an_axolotl_file(text: str, more: str, expected: dict[str, Any], tmp_path: Path) -> None:
    checked(by_axolotl(tmp_path, text, more), expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("adapter: ia3\nlora_r: 8", "adapter 'ia3' is not read"),
        ("adapter: lora", "adapter lora needs lora_r"),
        ("fsdp_config: [1]", "fsdp_config is not a mapping"),
        ("plugins: {a: 1}", "plugins .* is not a list"),
        ("sequence_len: x", "sequence_len 'x'"),
    ],
)
def test_what_an_axolotl_file_cannot_say(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        by_axolotl(tmp_path, text)


def test_axolotl_needs_its_file_and_its_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs its configuration"):
        read_training("axolotl", ["axolotl", "train"])
    path = tmp_path / "a.yml"
    for text, says in (
        ("- 1\n", "holds no mapping"),
        ("sequence_len: 1\n", "base_model is missing"),
        ("", "no mapping"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=says):
            read_training("axolotl", ["axolotl", "train", str(path)])


#: (framework, command, what it sets)
COMMANDS: list[tuple[str, str, dict[str, Any]]] = [
    *(("llama-factory", f"llamafactory-cli train --model_name_or_path {QWEN} --bf16 --cutoff_len 1024 {more}", found)
      for more, found in (
          ("", {"workload.method": "lora", "workload.base_format": None}),
          ("--finetuning_type full", {"workload.method": "full"}),
          ("--finetuning_type freeze", {"workload.method": "full"}),
          ("--finetuning_type oft", {"workload.method": "lora"}),
          ("--quantization_bit 4", {"workload.method": "qlora"}),
          ("--quantization_bit 8", {"workload.method": "lora", "workload.base_format": "int8"}),
          ("--use_dora true", {"workload.method": "dora"}),
          ("--stage dpo --finetuning_type full", {"plan.companions.0.name": "reference model"}),
          ("--stage dpo --finetuning_type full --pref_loss orpo", {"plan.companions": ()}),
          ("--stage dpo --finetuning_type full --pref_loss simpo", {"plan.companions": ()}),
          ("--stage dpo", {"plan.companions": ()}),
          ("--finetuning_type full --use_muon true", {"plan.optimizer.name": "muon"}),
          ("--finetuning_type full --pure_bf16 true", {"plan.recipe.name": "pure-bf16"}),
      )),
    *(("swift", f"NPROC_PER_NODE=8 swift sft --model {QWEN} {more}", found)
      for more, found in (
          ("", {"workload.method": "lora", "gpus": 8}),
          ("--train_type full", {"workload.method": "full"}),
          ("--tuner_type full", {"workload.method": "full"}),
          ("--quant_bits 4", {"workload.method": "qlora"}),
          ("--quant_bits 8", {"workload.method": "lora", "workload.base_format": "int8"}),
          ("--use_dora true", {"workload.method": "dora"}),
          ("--tuner_type full --fsdp fsdp2", {"plan.zero": 3, "plan.flat_parameters": False}),
      )),
    *(("openrlhf", f"deepspeed --module openrlhf.cli.train_{kind} --pretrain {QWEN} --max_len 2048 --zero_stage {stage} {more}",
       found)
      for kind, stage, more, found in (
          ("sft", 0, "", {"plan.zero": 0}),
          ("sft", 3, "", {"plan.zero": 3, "plan.offload": Offload()}),
          ("sft", 2, "--adam_offload", {"plan.zero": 2, "plan.offload": Offload(optimizer=1.0)}),
          ("sft", 2, "--lora_rank 16", {"workload.method": "lora", "workload.rank": 16}),
          ("sft", 2, "--lora_rank 16 --load_in_4bit", {"workload.method": "qlora"}),
          ("sft", 2, "--lora_rank 0", {"workload.method": "full"}),
          ("dpo", 2, "", {"plan.companions.0.name": "reference model"}),
          ("sft", 2, "--grad_accum_dtype fp32", {"plan.recipe.gradients": "fp32"}),
      )),
    *(("torchtune", f"tune run --nproc_per_node 2 {recipe} --config llama3_1/8B_{kind} {more}", found)
      for recipe, kind, more, found in (
          ("full_finetune_distributed", "full", "", {"workload.method": "full", "gpus": 2}),
          ("lora_finetune_distributed", "lora", "", {"workload.method": "lora"}),
          ("lora_finetune_distributed", "lora", "model.lora_rank=32", {"workload.rank": 32}),
          ("lora_finetune_distributed", "lora", "model.use_dora=True", {"workload.method": "dora"}),
          ("full_finetune_distributed", "full", "batch_size=4", {"plan.micro_batch": 4}),
          ("full_dpo_distributed", "full", "", {"plan.companions.0.name": "reference model"}),
          ("lora_dpo_distributed", "lora", "", {"plan.companions": ()}),
          ("grpo_full_finetune_distributed", "full", "", {"plan.companions.0.name": "reference model"}),
          ("ppo_full_finetune_single_device", "full", "",
           {"plan.companions.0.name": "reference model", "plan.companions.1.name": "reward model",
            "plan.companions.2.name": "critic"}),
          ("knowledge_distillation_distributed", "full", "", {"plan.companions.0.name": "teacher model"}),
      )),
    *(("megatron", f"{GPT} {more}", found)
      for more, found in (
          ("", {"plan.layout": Layout(dp=16), "plan.zero": 0, "plan.recompute": Recompute(), "plan.recipe.name": "bf16",
                "plan.optimizer.name": "adamw", "plan.hidden_dropout": True, "plan.attention_dropout": True,
                "plan.attention": "flash", "plan.loss": "full", "plan.cuda_graphs": False, "plan.dispatcher": None}),
          ("--hidden-dropout 0.0 --attention-dropout 0.0", {"plan.hidden_dropout": False,
           "plan.attention_dropout": False}),
          ("--hidden-dropout 0.05", {"plan.hidden_dropout": True}),
          ("--use-distributed-optimizer", {"plan.zero": 1, "plan.shard_group": None}),
          ("--use-distributed-optimizer --num-distributed-optimizer-instances 4", {"plan.shard_group": 4}),
          ("--use-distributed-optimizer --num-distributed-optimizer-instances 1", {"plan.shard_group": None}),
          ("--use-megatron-fsdp", {"plan.zero": 0}),
          ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"plan.zero": 2}),
          ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {"plan.zero": 3}),
          ("--use-torch-fsdp2", {"plan.zero": 3}),
          ("--tensor-model-parallel-size 4 --sequence-parallel", {"plan.layout": Layout(tp=4, dp=4), "plan.sp": True}),
          ("--sequence-parallel", {"plan.sp": False}),
          ("--context-parallel-size 2 --cp-comm-type a2a", {"plan.layout.cp": 2, "plan.cp_exchange": "all_to_all"}),
          ("--context-parallel-size 2 --cp-comm-type p2p", {"plan.cp_exchange": "ring"}),
          ("--pipeline-model-parallel-size 4", {"plan.layout": Layout(pp=4, dp=4), "plan.schedule": "1f1b"}),
          ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2",
           {"plan.layout.vpp": 4, "plan.schedule": "interleaved"}),
          ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2", {"plan.layout.vpp": 2}),
          ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 7",
           {"plan.pipeline_layers": (5, 10, 10, 7)}),
          ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 5", {"plan.pipeline_layers": (5, 9,
           9, 9)}),
          ("--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 12", {"plan.pipeline_layers": (20,
           12)}),
          ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*7|t*9|t*9|t*7L",
           {"plan.pipeline_layers": (7, 9, 9, 7), "plan.layout.vpp": 1}),
          ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*8|t*8|t*8|t*8L",
           {"plan.layout.vpp": 2}),
          ("--recompute-activations", {"plan.recompute": Recompute(mode="selective", parts=("core_attn",))}),
          ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
           {"plan.recompute": Recompute(mode="full")}),
          ("--recompute-granularity full --recompute-method block --recompute-num-layers 3",
           {"plan.recompute": Recompute(mode="full", layers=3)}),
          ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --recompute-granularity full"
           " --recompute-method block --recompute-num-layers 3", {"plan.recompute": Recompute(mode="full", layers=6)}),
          ("--grad-reduce-in-bf16", {"plan.recipe.name": "bf16-bf16-grads"}),
          ("--main-grads-dtype bf16", {"plan.recipe.name": "bf16-bf16-grads"}),
          ("--fp8-format hybrid --fp8-recipe tensorwise", {"plan.recipe.matmul": "fp8_tensor"}),
          ("--fp8-format e4m3 --fp8-recipe blockwise", {"plan.recipe.matmul": "fp8_block"}),
          ("--fp8-format e4m3 --fp8-recipe mxfp8", {"plan.recipe.matmul": "mxfp8"}),
          ("--fp4-format e2m1", {"plan.recipe.matmul": "nvfp4"}),
          ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
           {"plan.optimizer.name": "adamw-bf16-moments"}),
          ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", {"plan.optimizer.moments": ("fp32", "fp32")}),
          ("--use-precision-aware-optimizer --exp-avg-dtype bf16", {"plan.optimizer.moments": ("bf16", "fp32")}),
          ("--use-precision-aware-optimizer --main-params-dtype fp16", {"plan.recipe.master": "fp16"}),
          ("--main-params-dtype fp16", {"plan.recipe.master": "fp32"}),
          ("--optimizer sgd", {"plan.optimizer.name": "sgd-momentum"}),
          ("--optimizer muon", {"plan.optimizer.name": "muon"}),
          ("--optimizer-cpu-offload", {"plan.offload": Offload(optimizer=1.0)}),
          ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", {"plan.offload": Offload(optimizer=0.5)}),
          ("--optimizer-offload-fraction 0.5", {"plan.offload": Offload()}),
          ("--cpu-offloading-num-layers 8", {"plan.offload": Offload(activations=0.25)}),
          ("--cpu-offloading-num-layers 32 --cpu-offloading-weights", {"plan.offload": Offload(activations=1.0,
           weights=1.0)}),
          ("--attention-backend unfused", {"plan.attention": "eager"}),
          ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear", {"plan.loss": "fused"}),
          ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", {"plan.loss": "full"}),
          ("--cuda-graph-impl local", {"plan.cuda_graphs": True}),
          ("--cuda-graph-impl none", {"plan.cuda_graphs": False}),
          ("--tp-comm-overlap --overlap-grad-reduce", {"plan.overlap_tensor": True, "plan.overlap_data": True}),
          ("--num-experts 8 --expert-model-parallel-size 8", {"plan.layout.ep": 8, "plan.expert_tp": 1}),
          ("--num-experts 8 --expert-model-parallel-size 8 --tensor-model-parallel-size 2", {"plan.expert_tp": 2}),
          ("--num-experts 8 --expert-model-parallel-size 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1",
           {"plan.expert_tp": 1}),
          ("--num-experts 8 --moe-token-dispatcher-type flex", {"plan.dispatcher": "deepep"}),
          ("--num-experts 8 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
           {"plan.dispatcher": "hybridep"}),
          ("--num-experts 8 --moe-token-dispatcher-type alltoall", {"plan.dispatcher": None}),
          ("--train-iters 10", {"workload.tokens": 10 * 64 * 4096}),
          ("--train-samples 100", {"workload.tokens": 100 * 4096}),
      )),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "command", "expected"), COMMANDS)
def test_a_flag_of_a_trainer(framework: str, command: str, expected: dict[str, Any]) -> None:
    checked(read_training(framework, command.split(), gpus=8), expected)


#: (framework, command, refusal)
REFUSED = [
    ("llama-factory", f"llamafactory-cli train --model_name_or_path {QWEN} --finetuning_type x",
     "finetuning_type 'x' is not known"),
    ("llama-factory", f"llamafactory-cli train --model_name_or_path {QWEN} --stage x", "stage 'x' is not known"),
    ("swift", f"swift rlhf --model {QWEN} --rlhf_type x", "--rlhf_type 'x' is not known"),
    ("swift-megatron", "megatron sft --train_type full", "the command names no model"),
    ("openrlhf", f"deepspeed --module openrlhf.cli.train_x --pretrain {QWEN}", "openrlhf.cli.train_x is not read"),
    ("openrlhf", f"deepspeed --module openrlhf.cli.train_sft --pretrain {QWEN} --zero_stage 4",
     "4 is out of range; give 0 to 3"),
    ("torchtune", "tune run --nproc_per_node 2", "tune run names no recipe"),
    ("torchtune", "tune run full_finetune_distributed", "tune run needs --config"),
    ("torchtune", "tune run full_finetune_distributed --config x", "torchtune configuration 'x'"),
    ("trl", f"trl x --model_name_or_path {QWEN}", "trl 'x' is not read"),
    ("megatron", GPT.replace(" --seq-length 4096", ""), "the command has no --seq-length"),
    ("megatron", f"{GPT} --recompute-granularity x", "--recompute-granularity 'x' is not known"),
    ("megatron", f"{GPT} --fp8-format e4m3 --fp8-recipe x", "--fp8-recipe 'x' is not known"),
    ("megatron", f"{GPT} --use-megatron-fsdp --data-parallel-sharding-strategy x",
     "--data-parallel-sharding-strategy 'x'"),
    ("megatron", f"{GPT} --num-distributed-optimizer-instances 3", "instances 3 does not divide the 16 ranks"),
    ("megatron", f"{GPT} --cpu-offloading-num-layers 33", "33 is more than the 32 layers"),
    ("megatron", f"{GPT} --num-query-groups 5", "--num-query-groups 5 does not divide the 32"),
    ("megatron", f"{GPT} --num-experts 4 --moe-router-topk 5", "--moe-router-topk 5 is more than the 4 experts"),
    ("megatron", f"{GPT} --num-experts 4 --moe-layer-freq x", "--moe-layer-freq 'x' is not a number or a list"),
    ("megatron", f"{GPT} --num-experts 4 --moe-layer-freq ([0]*3+[1]*5)", "names 8 layers where --num-layers is 32"),
    ("megatron", f"{GPT} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
     "3 x 4 stages does not divide"),
    ("megatron", f"{GPT} --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 6",
     "leave 26 layers for 3 stages"),
    ("megatron", f"{GPT} --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 33", "leave -1 layers"),
    ("megatron", f"{GPT} --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*8|t*8|t*16L",
     "3 chunks for 4 stages"),
    ("megatron", f"{GPT} --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E[t]",
     "is not a layout such as"),
    ("megatron", "torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 4096 --bf16",
     "the command describes no model"),
    ("megatron", GPT.replace("--nproc-per-node 8", "--nproc-per-node gpu"), "does not say how many GPUs"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "command", "says"), REFUSED)
def test_what_a_trainer_cannot_mean(framework: str, command: str, says: str) -> None:
    with pytest.raises(InputError, match=says.replace("(", r"\(").replace(")", r"\)")):
        read_training(framework, command.split())


#: (framework, command, warning)
SAID = [
    ("llama-factory", f"llamafactory-cli train --model_name_or_path {QWEN} --finetuning_type oft",
     "oft is counted as lora"),
    ("llama-factory", f"llamafactory-cli train --model_name_or_path {QWEN} --finetuning_type full --use_badam true"
     " --badam_mode ratio", "badam_mode ratio keeps less state"),
    ("swift", f"NPROC_PER_NODE=8 swift sft --model {QWEN} --tuner_type boft", "tuner boft is counted as lora"),
    ("swift-megatron", f"NPROC_PER_NODE=8 megatron sft --model {QWEN}", "--max_length is not given"),
    ("torchtune", "tune run --nproc_per_node 2 qat_distributed --config llama3_1/8B_full",
     "fake quantisation keeps copies"),
    ("megatron", f"{GPT} --optimizer x", "--optimizer x is not known here; counted as Adam"),
    ("megatron", f"{GPT} --recompute-granularity selective --recompute-modules core_attn x",
     "--recompute-modules x is not counted"),
    ("megatron", GPT.replace(" --bf16", ""), "neither --bf16 nor --fp16"),
    ("megatron", GPT.replace(" --vocab-size 128256", ""), "does not say the vocabulary"),
    ("megatron", f"{GPT} --make-vocab-size-divisible-by 64", "--make-vocab-size-divisible-by: what this changes"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "command", "says"), SAID)
def test_what_is_counted_as_something_else_is_said(framework: str, command: str, says: str) -> None:
    found = read_training(framework, command.split(), gpus=8)
    assert sum(says in one.message for one in found.warnings) == 1, [one.message for one in found.warnings]


def test_the_plain_megatron_command_is_counted_as_it_stands() -> None:
    assert not read_training("megatron", GPT.split()).warnings
    assert not read_training("megatron", f"{GPT} --make-vocab-size-divisible-by 128".split()).warnings
