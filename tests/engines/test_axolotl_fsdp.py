"""Axolotl files with FSDP in every documented spelling: each is read, what does not matter is passed over or named."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from trilemma.engines.training import TrainingCommand, framework_facts, read_training
from trilemma.errors import InputError
from trilemma.plans.training import Offload

PLAIN: dict[str, Any] = {
    "base_model": "NousResearch/Meta-Llama-3.1-8B",
    "sequence_len": 4096,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "optimizer": "adamw_torch_fused",
    "bf16": True,
    "gradient_checkpointing": True,
    "flash_attention": True,
    "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
}
LORA: dict[str, Any] = {"adapter": "lora", "lora_r": 16, "lora_alpha": 32, "lora_target_linear": True}
QLORA: dict[str, Any] = {**LORA, "adapter": "qlora", "load_in_4bit": True, "optimizer": "paged_adamw_8bit"}
WRAP = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
OLD = {"fsdp_limit_all_gathers": True, "fsdp_sync_module_states": True, "fsdp_use_orig_params": False}
KEPT, MOVED = Offload(), Offload(optimizer=1.0, weights=1.0)


def _yaml(text: str = "{}", **config: Any) -> dict[str, Any]:
    """The keys of ``text`` and what stands below fsdp_config."""
    return {**yaml.safe_load(text), **({"fsdp_config": config} if config else {})}


#: A row a file, laid over the plain one; ZeRO stage, gathered blocks freed, shard group of 16 GPUs on two nodes, offload.
FILES: list[tuple[dict[str, Any], int, bool, int | None, Offload]] = [
    (_yaml("fsdp: [full_shard, auto_wrap]", **OLD, fsdp_state_dict_type="FULL_STATE_DICT"), 3, True, None, KEPT),
    (_yaml("fsdp: [full_shard, auto_wrap, offload]", fsdp_offload_params=True), 3, True, None, MOVED),
    (_yaml("fsdp: [shard_grad_op, auto_wrap]"), 3, False, None, KEPT),
    (_yaml("fsdp: [hybrid_shard, auto_wrap]", fsdp_backward_prefetch="BACKWARD_PRE"), 3, True, 8, KEPT),
    (_yaml("fsdp: [hybrid_shard_zero2]", fsdp_backward_prefetch_policy="BACKWARD_POST"), 3, False, 8, KEPT),
    (_yaml("fsdp: [no_shard]"), 0, True, None, KEPT),
    (_yaml("fsdp: full_shard auto_wrap", fsdp_forward_prefetch=True), 3, True, None, KEPT),
    (_yaml(fsdp_sharding_strategy="FULL_SHARD", fsdp_auto_wrap_policy="SIZE_BASED_WRAP", fsdp_min_num_params=1000000), 3, True,
     None, KEPT),
    (_yaml(sharding_strategy="SHARD_GRAD_OP", **WRAP, state_dict_type="SHARDED_STATE_DICT"), 3, False, None, KEPT),
    (_yaml(sharding_strategy="HYBRID_SHARD", **WRAP, limit_all_gathers=False), 3, True, 8, KEPT),
    (_yaml(sharding_strategy=4, **WRAP, sync_module_states=True), 3, True, 8, KEPT),
    (_yaml("fsdp_version: 1", offload_params=True, use_orig_params=True, final_state_dict_type="FULL_STATE_DICT"), 3, True,
     None, MOVED),
    (_yaml("fsdp_version: 2", reshard_after_forward=True, cpu_ram_efficient_loading=True, **WRAP), 3, True, None, KEPT),
    (_yaml("fsdp_version: 2", reshard_after_forward=False, state_dict_type="FULL_STATE_DICT"), 3, False, None, KEPT),
    (_yaml("fsdp_version: '2'", offload_params=True, cpu_offload_pin_memory=False), 3, True, None, MOVED),
    (_yaml(fsdp_version=2, fsdp_reshard_after_forward=True, fsdp_activation_checkpointing=True), 3, True, None, KEPT),
    (_yaml(version=2, mixed_precision_policy="bf16", ignored_modules="lm_head"), 3, True, None, KEPT),
    (_yaml("fsdp_version: 2", reshard_after_forward="FULL_SHARD", **WRAP), 3, True, None, KEPT),
    (_yaml("{fsdp_version: 2, dp_shard_size: 8, dp_replicate_size: 2}", reshard_after_forward=True), 3, True, 8, KEPT),
    (_yaml("fsdp_version: 2", fsdp_state_dict_type="LOCAL_STATE_DICT", fsdp_offload_params=False), 3, True, None, KEPT),
    ({**LORA, **_yaml("fsdp: [full_shard, auto_wrap]", **OLD, fsdp_cpu_offload_pin_memory=True)}, 3, True, None, KEPT),
    ({**QLORA, **_yaml("fsdp: [full_shard, auto_wrap]", **OLD, fsdp_offload_params=True)}, 3, True, None, MOVED),
    ({**QLORA, **_yaml("{fsdp_version: 2, fsdp_final_state_dict_type: FULL_STATE_DICT}", activation_checkpointing=True,
                       transformer_cls_names_to_wrap=["LlamaDecoderLayer"])}, 3, True, None, KEPT),
]  # fmt: skip


def read(folder: Path, change: dict[str, Any]) -> TrainingCommand:
    path = folder / "run.yml"
    path.write_text(yaml.safe_dump({**PLAIN, **change}))
    start = f"accelerate launch --num_processes 16 --num_machines 2 -m axolotl.cli.train {path}"
    return read_training("axolotl", shlex.split(start))


@pytest.mark.parametrize(("change", "zero", "reshard", "group", "offload"), FILES)
def test_every_spelling_is_read(
    tmp_path: Path, change: dict[str, Any], zero: int, reshard: bool, group: int | None, offload: Offload
) -> None:
    found = read(tmp_path, change)
    plan = found.plan
    assert (plan.zero, plan.reshard, plan.shard_group, plan.offload) == (zero, reshard, group, offload)
    assert found.unknown_flags == ()
    assert found.gpus == 16
    assert found.workload.global_batch == 32
    assert found.workload.method == {"lora": "lora", "qlora": "qlora"}.get(str(change.get("adapter")), "full")


def test_all_documented_keys_are_among_the_files() -> None:
    facts = framework_facts("fsdp_keys")
    used = {str(key).removeprefix("fsdp_") for change, *_ in FILES for key in change.get("fsdp_config", {})}
    # cpu_offload, XLA and the offload of checkpoints are keys of the Trainer and of Accelerate alone.
    others = {"cpu_offload", "activation_checkpointing_offload", "state_dict_config"}
    left = {*facts["counted"], *facts["passed"]} - used - others
    assert not {key for key in left if not key.startswith("xla")}


def test_a_key_that_nobody_knows_is_named_and_passed_over(tmp_path: Path) -> None:
    found = read(tmp_path, {"fsdp_config": {"reshard": 1, "offload_params": False}, "fsdp": ["full_shard", "most"]})
    assert found.unknown_flags == ("fsdp_config.reshard", "fsdp: most")
    assert any("fsdp_config.reshard" in warning.message for warning in found.warnings)
    assert found.plan.zero == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fsdp_config": {"sharding_strategy": "MOST"}}, "'MOST' is not known; use FULL_SHARD"),
        ({"fsdp_config": {"reshard_after_forward": "maybe"}}, "neither true nor false"),
        ({"fsdp_version": 3, "fsdp_config": {"offload_params": True}}, "fsdp_version 3 is out of range"),
        ({"fsdp_config": [1]}, "fsdp_config is not a mapping"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, change)


def test_targets_by_a_pattern_and_of_another_model(tmp_path: Path) -> None:
    pattern = r"model.layers.[\d]+.self_attn.(q_proj|o_proj)"
    found = read(tmp_path, {**LORA, "lora_target_linear": False, "lora_target_modules": pattern})
    assert found.workload.targets == ("q_proj", "o_proj")
    found = read(tmp_path, {**LORA, "lora_target_linear": False, "lora_target_modules": ["kv_a_proj_with_mqa"]})
    assert found.workload.targets == ()
    assert "assumed-targets" in {warning.code for warning in found.warnings}


@pytest.mark.parametrize(
    ("change", "sequences", "beside"),
    [
        ({"rl": "dpo"}, 2, ["reference model"]),
        ({"rl": "dpo", **LORA}, 2, []),
        ({"rl": "orpo"}, 2, []),
        ({"rl": "kto"}, 1, ["reference model"]),
        ({"reward_model": True}, 2, []),
        ({"rl": "grpo", "trl": {"use_vllm": True, "vllm_mode": "server", "beta": 0.001}}, 1, ["reference model"]),
        (
            {"rl": "grpo", "trl": {"use_vllm": True, "vllm_mode": "colocate"}, "vllm": {"gpu_memory_utilization": 0.4}},
            1,
            ["generation engine"],
        ),
        ({"rl": False}, 1, []),
    ],
)
def test_preference_and_reinforcement(
    tmp_path: Path, change: dict[str, Any], sequences: int, beside: list[str]
) -> None:
    found = read(tmp_path, change)
    assert found.plan.micro_batch == sequences
    assert [one.name for one in found.plan.companions] == beside
    assert found.unknown_flags == ()
