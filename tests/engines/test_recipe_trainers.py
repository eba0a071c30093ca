"""Commands of torchtune, OpenRLHF and verl: recipes, dotted flags and overrides, with their own defaults."""

import json
import shlex
from typing import Any

import pytest

from trilemma.cli.main import main
from trilemma.engines.extract import extract
from trilemma.engines.training import TrainingCommand, framework_facts, read_training
from trilemma.errors import InputError
from trilemma.models.resolve import load_model

QWEN = "Qwen/Qwen2.5-7B-Instruct"
VERL = f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={QWEN}"
PPO = f"python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --actor_num_gpus_per_node 8 --pretrain {QWEN}"


def read(words: str, gpus: int = 8) -> TrainingCommand:
    framework, own = extract(shlex.split(words))
    return read_training(framework, own, gpus=gpus)


def shape(found: TrainingCommand) -> dict[str, Any]:
    plan, load = found.plan, found.workload
    return {
        "gpus": found.gpus, "method": load.method, "rank": load.rank, "seq": load.seq, "batch": load.global_batch,
        "micro": int(plan.micro_batch), "zero": plan.zero, "again": plan.recompute.mode, "recipe": plan.recipe.name,
        "loss": plan.loss, "tp": plan.layout.tp, "cp": plan.layout.cp, "offload": plan.offload.optimizer,
        "beside": tuple(one.name for one in plan.companions), "backward": plan.optimizer_in_backward,
    }  # fmt: skip


COMMANDS: list[tuple[str, dict[str, Any]]] = [
    # torchtune: all state in BF16, chunked loss, two sequences a GPU (recipes/configs).
    ("tune run --nproc_per_node 4 full_finetune_distributed --config llama3_1/8B_full",
     {"gpus": 4, "method": "full", "micro": 2, "batch": 8, "again": "full", "recipe": "pure-bf16", "loss": "chunked", "zero": 3}),
    ("tune run --nnodes 1 --nproc_per_node 8 lora_finetune_distributed --config llama3_1/70B_lora",
     {"gpus": 8, "method": "lora", "rank": 16}),
    ("tune run lora_finetune_single_device --config llama3_1/8B_qlora_single_device", {"gpus": 1, "method": "qlora", "rank": 8}),
    ("tune run full_finetune_single_device --config llama2/7B_full_low_memory", {"gpus": 1, "zero": 0, "backward": True}),
    ("tune run --nproc_per_node 2 full_finetune_distributed --config qwen3/8B_full batch_size=4 tokenizer.max_seq_len=8192"
     " enable_activation_checkpointing=False", {"micro": 4, "seq": 8192, "again": "none"}),
    ("tune run --nproc_per_node 8 full_finetune_distributed --config llama3_1/70B_full fsdp_cpu_offload=True compile=True",
     {"offload": 1.0}),
    ("tune run --nproc_per_node=8 --nnodes=2 full_finetune_distributed --config llama3_3/70B_full_multinode"
     " tensor_parallel_dim=8 tokenizer.max_seq_len=4096", {"gpus": 16, "tp": 8}),
    ("tune run --nproc_per_node 8 full_dpo_distributed --config llama3_1/8B_full_dpo", {"beside": ("reference model",)}),
    ("tune run --nproc_per_node 2 lora_dpo_distributed --config llama3_1/8B_lora_dpo", {"beside": (), "method": "lora"}),
    ("tune run lora_finetune_single_device --config llama3/8B_dora_single_device gradient_accumulation_steps=4",
     {"method": "dora", "gpus": 1}),
    ("tune run knowledge_distillation_single_device --config qwen2_5/14B_to_7B_KD_lora_single_device",
     {"beside": ("teacher model",), "gpus": 1}),
    # OpenRLHF: BF16 under ZeRO-2, FlashAttention.
    (f"deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain {QWEN} --max_len 4096 --micro_train_batch_size 2"
     " --train_batch_size 256 --zero_stage 3 --gradient_checkpointing --adam_offload --bf16 --flash_attn",
     {"gpus": 8, "micro": 2, "batch": 256, "zero": 3, "offload": 1.0, "again": "full"}),
    (f"deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path {QWEN} --data.max_len 2048 --ds.zero_stage 2"
     " --train.micro_batch_size 4", {"gpus": 8, "micro": 4, "batch": 128, "again": "none", "recipe": "zero-bf16"}),
    (f"deepspeed --module openrlhf.cli.train_dpo --pretrain {QWEN} --micro_train_batch_size 1 --zero_stage 3 --beta 0.1",
     {"micro": 2, "batch": 256, "seq": 512, "beside": ("reference model",)}),
    (f"deepspeed --module openrlhf.cli.train_rm --pretrain {QWEN} --micro_train_batch_size 1 --max_len 2048",
     {"micro": 2, "beside": ()}),
    (f"deepspeed --num_gpus 4 --module openrlhf.cli.train_sft --pretrain {QWEN} --lora_rank 64 --load_in_4bit --zero_stage 2",
     {"gpus": 4, "method": "qlora", "rank": 64}),
    (f"{PPO} --colocate_all_models --vllm_num_engines 8 --vllm_tensor_parallel_size 1 --vllm_gpu_memory_utilization 0.6"
     f" --vllm_enable_sleep --reward_pretrain {QWEN} --zero_stage 3 --prompt_max_len 1024 --generate_max_len 1024",
     {"gpus": 8, "seq": 2048, "micro": 1, "beside": ("reference model", "reward model", "critic", "generation engine")}),
    (f"{PPO} --advantage_estimator reinforce --colocate_all_models --vllm_num_engines 4 --vllm_tensor_parallel_size 2"
     " --remote_rm_url http://x --init_kl_coef 0", {"beside": ("generation engine",)}),
    (f"{PPO} --ref_num_nodes 1 --ref_num_gpus_per_node 8 --vllm_num_engines 2 --vllm_tensor_parallel_size 4", {"beside": ()}),
    (f"ray job submit --address=http://127.0.0.1:8265 -- {PPO} --colocate_all_models --vllm_num_engines 8 --vllm_enable_sleep"
     " --advantage_estimator group_norm", {"gpus": 8, "beside": ("reference model", "generation engine")}),
    (f"{PPO} --ring_attn_size 2 --max_len 8192 --colocate_all_models --vllm_num_engines 8 --advantage_estimator rloo", {"cp": 2}),
    (f"python -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path {QWEN} --actor.num_nodes 2 --actor.num_gpus_per_node 8"
     " --train.colocate_all --vllm.num_engines 16 --vllm.enable_sleep --algo.advantage.estimator gae --ds.zero_stage 3",
     {"gpus": 16, "zero": 3}),
    # verl: FP32 shards computed in BF16, recomputation on, mini-batches of 256 prompts; the reference on the host.
    (f"{VERL} algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 trainer.nnodes=1",
     {"gpus": 8, "zero": 3, "recipe": "fsdp", "again": "full", "seq": 1024, "batch": 256, "beside": ("generation engine",)}),
    (f"{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.n=5"
     " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=vllm"
     " actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
     {"micro": 4, "batch": 1280, "beside": ("reference model", "generation engine")}),
    (f"{VERL} critic.model.path={QWEN} critic.ppo_micro_batch_size_per_gpu=4", {"beside": ("critic", "generation engine")}),
    (f"{VERL} algorithm.adv_estimator=gae trainer.nnodes=2 critic.model.path={QWEN}"
     " actor_rollout_ref.actor.fsdp_config.param_offload=True", {"gpus": 16}),
    (f"{VERL} algorithm.adv_estimator=grpo data.max_prompt_length=1024 data.max_response_length=7168"
     " actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
     {"seq": 8192, "micro": 2}),
    (f"{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", {"cp": 2}),
    (f"{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.actor.use_kl_loss=True",
     {"method": "lora", "rank": 32, "beside": ("generation engine",)}),
    (f"{VERL} algorithm.adv_estimator=rloo +actor_rollout_ref.actor.fsdp_config.model_dtype=bf16", {"recipe": "pure-bf16"}),
    (f"{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.actor.strategy=fsdp2"
     " actor_rollout_ref.actor.fsdp_config.offload_policy=True", {"offload": 1.0}),
    (f"torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain={QWEN}"
     " data.micro_batch_size_per_gpu=4 data.max_length=2048", {"gpus": 8, "micro": 4, "seq": 2048, "batch": 256, "beside": ()}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), COMMANDS)
def test_commands_are_read(words: str, expected: dict[str, Any]) -> None:
    found = read(words)
    assert {key: value for key, value in shape(found).items() if key in expected} == expected
    assert found.unknown_flags == ()


def test_ten_commands_of_each() -> None:
    owners = [extract(shlex.split(words))[0] for words, _ in COMMANDS]
    assert {name: owners.count(name) >= 10 for name in ("torchtune", "openrlhf", "verl")} == {
        "torchtune": True, "openrlhf": True, "verl": True,
    }  # fmt: skip


def test_every_builder_of_torchtune_is_a_model_of_the_catalogue() -> None:
    facts = framework_facts("torchtune")
    missing = set()
    for name in facts["builders"].values():
        try:
            assert load_model(name).layers
        except InputError:
            missing.add(name)
    assert missing <= {"Qwen/Qwen2-0.5B-Instruct", "Qwen/Qwen2-1.5B-Instruct", "smohammadi/tinyllama_rm_sentiment_1b"}


@pytest.mark.slow
def test_every_configuration_of_torchtune_is_read() -> None:
    for name, row in framework_facts("torchtune")["configs"].items():
        if "ppo" in name or name.startswith(("qwen2/0.5B", "qwen2/1.5", "llama2/1B")):
            continue  # models that the catalogue has not
        recipe = "full_finetune_single_device" if "single" in name else "full_finetune_distributed"
        found = read(f"tune run --nproc_per_node 8 {recipe} --config {name}")
        assert found.plan.micro_batch == row["batch_size"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tune run --nproc_per_node 2 full_finetune_distributed", "needs --config NAME"),
        ("tune run full_finetune_distributed --config llama3_1/9B_full", "unknown torchtune configuration"),
        ("tune run --nproc_per_node 2", "names no recipe"),
        (f"{VERL} actor_rollout_ref.actor.strategy=megatron", "strategy=megatron is not read"),
        (f"{VERL} actor_rollout_ref.rollout.gpu_memory_utilization=60", "not a share"),
        (f"deepspeed --module openrlhf.cli.train_sft --pretrain {QWEN} --zero_stage 4", "out of range"),
    ],
)
def test_what_cannot_be_is_refused(words: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(words)


def judged(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["check", "--gpu", "h100-sxm:8", "--json", "--", *shlex.split(words)]) in (0, 1)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def total(found: dict[str, Any], name: str | None = None) -> float:
    return sum(one["bytes"] for one in found["memory"]["items"] if name in (None, one["name"]))


def test_an_engine_asleep_in_the_update_needs_room_beside_the_state(capsys: pytest.CaptureFixture[str]) -> None:
    """verl frees the engine's cache in the update; what is left on the card while it generates must leave its share."""
    base = f"{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.gpu_memory_utilization=0.8"
    beside = judged(base, capsys)
    fsdp = "actor_rollout_ref.actor.fsdp_config"
    moved = judged(f"{base} {fsdp}.param_offload=True {fsdp}.optimizer_offload=True", capsys)
    awake = judged(f"{base} actor_rollout_ref.rollout.free_cache_engine=False", capsys)
    assert total(moved) < total(beside) < total(awake)
    assert total(awake, "generation_engine") == pytest.approx(0.8 * awake["memory"]["capacity_bytes"], rel=1e-6)
    for found in (beside, moved):
        assert found["verdict"]["probability"] <= 0.9
    state = total(beside, "weights") + total(beside, "optimizer") + total(beside, "context")
    update = total(beside) - total(beside, "generation_engine")
    assert total(beside) == pytest.approx(max(state + 0.8 * beside["memory"]["capacity_bytes"], update))


def test_a_critic_costs_as_much_state_by_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    alone = judged(f"{VERL} algorithm.adv_estimator=grpo", capsys)
    beside = judged(f"{VERL} algorithm.adv_estimator=gae critic.model.path={QWEN}", capsys)
    assert total(beside, "critic") == pytest.approx(total(alone, "weights") + total(alone, "optimizer"))
