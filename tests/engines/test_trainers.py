"""Commands of trainers on the Trainer of Transformers: each is read with the trainer's own defaults and names."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from trilemma.cli.main import main
from trilemma.engines.extract import extract
from trilemma.engines.trainer import trainer
from trilemma.engines.training import TrainingCommand, framework_facts, read_training
from trilemma.errors import InputError
from trilemma.plans.companions import Companion

QWEN = "Qwen/Qwen2.5-7B-Instruct"


def read(words: str, gpus: int = 8) -> TrainingCommand:
    framework, own = extract(shlex.split(words))
    return read_training(framework, own, gpus=gpus)


def shape(found: TrainingCommand) -> dict[str, Any]:
    plan, load = found.plan, found.workload
    return {
        "gpus": found.gpus, "method": load.method, "rank": load.rank, "seq": load.seq, "batch": load.global_batch,
        "micro": int(plan.micro_batch), "zero": plan.zero, "again": plan.recompute.mode, "recipe": plan.recipe.name,
        "loss": plan.loss, "beside": tuple(one.name for one in plan.companions),
    }  # fmt: skip


#: A command and what of its shape it settles; every flag is known.
COMMANDS: list[tuple[str, dict[str, Any]]] = [
    # TRL: recomputation and BF16 are on unless denied (trainer/base_config.py), eight sequences a GPU.
    (f"trl sft --model_name_or_path {QWEN} --dataset_name trl-lib/Capybara",
     {"gpus": 8, "micro": 8, "batch": 64, "seq": 1024, "again": "full", "recipe": "amp", "loss": "fused"}),
    (f"trl sft --model_name_or_path {QWEN} --dataset_name a/b --dtype bfloat16 --per_device_train_batch_size 2"
     " --gradient_accumulation_steps 4 --max_length 4096 --packing --no_gradient_checkpointing",
     {"again": "none", "recipe": "pure-bf16", "batch": 64, "seq": 4096}),
    (f"trl sft --model_name_or_path {QWEN} --use_peft --lora_r 32 --lora_target_modules all-linear --load_in_4bit",
     {"method": "qlora", "rank": 32}),
    (f"trl sft --model_name_or_path {QWEN} --accelerate_config fsdp2 --num_processes 4 --use_liger_kernel",
     {"gpus": 4, "zero": 3, "recipe": "fsdp", "loss": "fused"}),
    (f"trl dpo --model_name_or_path {QWEN} --accelerate_config zero3 --per_device_train_batch_size 1 --max_length 2048",
     {"micro": 2, "batch": 16, "zero": 3, "beside": ("reference model",)}),
    (f"trl dpo --model_name_or_path {QWEN} --use_peft --per_device_train_batch_size 1", {"micro": 2, "beside": ()}),
    (f"trl dpo --model_name_or_path {QWEN} --precompute_ref_log_probs true", {"micro": 16, "beside": ()}),
    (f"trl kto --model_name_or_path {QWEN} --per_device_train_batch_size 2", {"micro": 2, "beside": ("reference model",)}),
    (f"trl reward --model_name_or_path {QWEN} --per_device_train_batch_size 2", {"micro": 4, "beside": ()}),
    (f"trl grpo --model_name_or_path {QWEN} --beta 0.04 --use_vllm --vllm_gpu_memory_utilization 0.4"
     " --max_completion_length 1024",
     {"seq": 1536, "beside": ("reference model", "generation engine")}),
    (f"accelerate launch --num_processes 4 grpo.py --model_name_or_path {QWEN} --use_vllm --vllm_mode server --num_generations 4",
     {"gpus": 4, "beside": ()}),
    (f"torchrun --nproc_per_node 2 -m trl.scripts.dpo --model_name_or_path {QWEN} --beta 0.1", {"gpus": 2, "micro": 16}),
    # LLaMA-Factory: LoRA of rank 8 on every linear layer, 2,048 tokens, recomputation on; what is trained is cast to FP32
    # (src/llamafactory/model/adapter.py, cast_trainable_params_to_fp32).
    (f"llamafactory-cli train --model_name_or_path {QWEN} --stage sft --do_train --dataset alpaca --template qwen --bf16 true",
     {"gpus": 8, "method": "lora", "rank": 8, "seq": 2048, "again": "full", "recipe": "amp"}),
    (f"FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train --model_name_or_path {QWEN} --finetuning_type full"
     " --deepspeed examples/deepspeed/ds_z3_config.json --cutoff_len 4096 --per_device_train_batch_size 1 --bf16",
     {"gpus": 16, "method": "full", "zero": 3, "seq": 4096, "batch": 16, "recipe": "zero-bf16"}),
    (f"deepspeed --num_gpus 8 src/train.py --deepspeed ds_z3_offload_config.json --stage pt --model_name_or_path {QWEN}"
     " --finetuning_type full --cutoff_len 32768 --per_device_train_batch_size 1 --bf16 true",
     {"zero": 3, "again": "full", "seq": 32768}),
    (f"CUDA_VISIBLE_DEVICES=0 llamafactory-cli train --model_name_or_path {QWEN} --quantization_bit 4 --lora_rank 64 --fp16",
     {"gpus": 1, "method": "qlora", "rank": 64}),
    (f"llamafactory-cli train --model_name_or_path {QWEN} --disable_gradient_checkpointing --pure_bf16 --finetuning_type full",
     {"again": "none", "recipe": "pure-bf16"}),
    (f"llamafactory-cli train --stage dpo --model_name_or_path {QWEN} --pref_beta 0.1 --finetuning_type full --bf16"
     " --per_device_train_batch_size 1", {"micro": 2, "beside": ("reference model",)}),
    (f"llamafactory-cli train --stage dpo --pref_loss orpo --model_name_or_path {QWEN} --finetuning_type full --bf16",
     {"micro": 16, "beside": ()}),
    (f"llamafactory-cli train --stage rm --model_name_or_path {QWEN} --lora_target q_proj,v_proj --bf16", {"micro": 16}),
    (f"lmf train --stage kto --model_name_or_path {QWEN} --finetuning_type lora --bf16 --flash_attn fa2", {"beside": ()}),
    (f"llamafactory-cli train --model_name_or_path {QWEN} --enable_liger_kernel --use_unsloth_gc --bf16", {"loss": "fused"}),
    # ms-swift: LoRA of rank 8, BF16, recomputation on, sixteen sequences a step.
    (f"NPROC_PER_NODE=8 swift sft --model {QWEN} --dataset a --torch_dtype bfloat16 --max_length 2048 --deepspeed zero2",
     {"gpus": 8, "method": "lora", "rank": 8, "zero": 2, "batch": 16, "again": "full"}),
    (f"CUDA_VISIBLE_DEVICES=0 swift sft --model {QWEN} --train_type lora --lora_rank 16 --target_modules all-linear",
     {"gpus": 1, "rank": 16, "batch": 16, "recipe": "amp"}),
    (f"NPROC_PER_NODE=4 swift sft --model {QWEN} --tuner_type full --deepspeed zero3_offload --gradient_accumulation_steps 2",
     {"gpus": 4, "method": "full", "zero": 3, "batch": 8}),
    (f"NPROC_PER_NODE=2 swift sft --model {QWEN} --quant_bits 4 --quant_method bnb --train_type lora", {"method": "qlora"}),
    (f"NNODES=2 NODE_RANK=0 NPROC_PER_NODE=8 swift pt --model {QWEN} --train_type full --deepspeed zero3", {"gpus": 16}),
    (f"NPROC_PER_NODE=8 swift sft --model {QWEN} --train_type full --fsdp fsdp2", {"zero": 3, "recipe": "fsdp"}),
    (f"NPROC_PER_NODE=8 swift rlhf --rlhf_type dpo --model {QWEN} --train_type full --deepspeed zero3",
     {"micro": 2, "batch": 32, "beside": ("reference model",)}),
    (f"NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model {QWEN} --train_type full --use_vllm true --vllm_mode colocate"
     " --vllm_gpu_memory_utilization 0.5 --sleep_level 1 --deepspeed zero3 --max_completion_length 2048",
     {"beside": ("reference model", "generation engine")}),
    (f"NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model {QWEN} --train_type lora --use_vllm true --vllm_mode server",
     {"beside": ()}),
    (f"NPROC_PER_NODE=8 torchrun --nproc_per_node 4 -m swift.cli.sft --model {QWEN} --sequence_parallel_size 2", {"gpus": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), COMMANDS)
def test_commands_are_read(words: str, expected: dict[str, Any]) -> None:
    found = read(words)
    assert {key: value for key, value in shape(found).items() if key in expected} == expected
    assert found.unknown_flags == ()


def test_ten_commands_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    del capsys
    owners = [extract(shlex.split(words))[0] for words, _ in COMMANDS]
    for name in ("llama-factory", "swift"):
        assert owners.count(name) >= 10
    assert sum("trl" in words or "grpo.py" in words for words, _ in COMMANDS) >= 10


def test_files_of_each_trainer(tmp_path: Path) -> None:
    plain = {"model_name_or_path": QWEN, "per_device_train_batch_size": 1, "bf16": True}
    (tmp_path / "trl.yaml").write_text(
        yaml.safe_dump({**plain, "accelerate_config": "zero3", "num_processes": 4, "max_length": 512})
    )
    found = read(f"trl sft --config {tmp_path}/trl.yaml --max_length 2048")
    assert (found.gpus, found.plan.zero, found.workload.seq) == (4, 3, 2048)
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}))
    document = {
        **plain,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "deepspeed": "ds.json",
        "cutoff_len": 4096,
    }
    (tmp_path / "lf.yaml").write_text(yaml.safe_dump(document))
    found = read(f"llamafactory-cli train {tmp_path}/lf.yaml per_device_train_batch_size=2 cutoff_len=1024")
    assert (found.plan.zero, found.plan.micro_batch, found.workload.seq) == (2, 2, 1024)
    (tmp_path / "swift.yaml").write_text(
        yaml.safe_dump({"model": QWEN, "tuner_type": "full", "ENV": {"NPROC_PER_NODE": 2}})
    )
    assert read(f"swift sft {tmp_path}/swift.yaml --max_length 1024").gpus == 2


@pytest.mark.parametrize(
    "before", ["accelerate launch --num_processes 8", "torchrun --nproc_per_node 8", "deepspeed --num_gpus 8"]
)
def test_a_trainer_is_told_by_its_file_behind_every_launcher(tmp_path: Path, before: str) -> None:
    """hiyouga/LLaMA-Factory issue 3825: accelerate launch … src/train.py FILE.yaml."""
    (tmp_path / "lf.yaml").write_text(yaml.safe_dump({"model_name_or_path": QWEN, "stage": "sft", "cutoff_len": 1024}))
    words = shlex.split(f"{before} src/train.py {tmp_path}/lf.yaml")
    engine, own = extract(words)
    assert engine == "llama-factory"
    assert read_training(engine, own).gpus == 8


def test_a_key_that_is_unknown_is_named_with_the_nearest() -> None:
    found = read(f"llamafactory-cli train --model_name_or_path {QWEN} --cutof_len 4096 --bf16")
    assert found.unknown_flags == ("--cutof_len",)
    assert any("cutoff_len" in warning.message for warning in found.warnings)
    assert found.workload.seq == 2048


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"trl sft --model_name_or_path {QWEN} --per_device_train_batch_size 0", "out of range"),
        ("trl sft --dataset_name a", "names no model"),
        (f"trl grpo --model_name_or_path {QWEN} --use_vllm --vllm_gpu_memory_utilization 1.5", "not a share"),
        (f"trl grpo --model_name_or_path {QWEN} --use_vllm --vllm_mode nearby", "'nearby' is not known"),
        (f"llamafactory-cli train --model_name_or_path {QWEN} --stage later", "stage 'later' is not known"),
        (f"NPROC_PER_NODE=x swift sft --model {QWEN}", "NPROC_PER_NODE 'x' is not a whole number"),
        (f"NPROC_PER_NODE=2 swift rlhf --rlhf_type best --model {QWEN}", "'best' is not known"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_refused(words: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(words)


def test_every_meaning_of_a_data_file_is_a_key_and_has_a_source() -> None:
    for name in ("transformers_flags", "trl", "llama_factory", "swift"):
        of = trainer(name)
        assert framework_facts(name)["source"]
        assert {key for keys in of.meaning.values() for key in keys} <= of.keys
        assert of.switches <= of.keys or name == "transformers_flags"


GRPO = (
    "accelerate launch --num_processes 4 grpo.py --model_name_or_path Qwen/Qwen2.5-7B --deepspeed ds_z3_config.json --bf16 true"
    " --per_device_train_batch_size 1 --max_length 2048"
)


def judged(words: str, capsys: pytest.CaptureFixture[str], gpu: str = "h100-sxm:4") -> dict[str, Any]:
    assert main(["check", "--gpu", gpu, "--json", "--", *shlex.split(words)]) in (0, 1)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def total(found: dict[str, Any], name: str | None = None) -> float:
    items = found["memory"]["items"]
    return sum(one["bytes"] for one in items if name in (None, one["name"]))


def test_a_colocated_engine_takes_its_share_of_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    """huggingface/trl issues 2972 and 2927: 0.7 of the card for vLLM beside a training of 37 GiB is out of memory."""
    alone = judged(f"{GRPO} --use_vllm --vllm_mode server", capsys)
    beside = judged(f"{GRPO} --use_vllm --vllm_mode colocate --vllm_gpu_memory_utilization 0.7", capsys)
    assert total(alone, "generation_engine") == 0
    share = total(beside, "generation_engine") / beside["memory"]["capacity_bytes"]
    assert share == pytest.approx(0.7, rel=1e-6)
    assert total(beside) == pytest.approx(total(alone) + total(beside, "generation_engine"))
    assert beside["verdict"]["stage"] == "oom_runtime"
    asleep = judged(
        f"{GRPO} --use_vllm --vllm_mode colocate --vllm_gpu_memory_utilization 0.7 --vllm_enable_sleep_mode", capsys
    )
    assert total(alone) <= total(asleep) < total(beside)
    assert asleep["verdict"]["probability"] <= 0.9


def test_dpo_holds_twice_the_sequences_and_a_reference(capsys: pytest.CaptureFixture[str]) -> None:
    bare = f"--model_name_or_path {QWEN} --bf16 true --per_device_train_batch_size 1 --max_length 2048"
    base = f"{bare} --deepspeed ds_z3_config.json"
    plain = judged(f"deepspeed --num_gpus 8 sft.py {base}", capsys, "h100-sxm:8")
    pairs = judged(f"deepspeed --num_gpus 8 dpo.py {base}", capsys, "h100-sxm:8")
    assert total(pairs, "activations") == pytest.approx(2 * total(plain, "activations"), rel=0.02)
    assert total(pairs, "logits") == pytest.approx(2 * total(plain, "logits"), rel=0.02)
    parameters = pairs["inputs"]["model"]["parameters"]
    assert total(pairs, "reference_models") == pytest.approx(2 * parameters / 8)
    whole = judged(
        f"torchrun --nproc_per_node 8 dpo.py {base.replace('--deepspeed ds_z3_config.json', '')}", capsys, "h100-sxm:8"
    )
    assert total(whole, "reference_models") == pytest.approx(4 * parameters)  # FP32 autocast weights, whole on each GPU


def test_ppo_counts_reward_and_critic() -> None:
    found = read(
        f"NPROC_PER_NODE=8 swift rlhf --rlhf_type ppo --model {QWEN} --reward_model Qwen/Qwen2.5-0.5B --train_type full"
    )
    by_name = {one.name: one for one in found.plan.companions}
    assert set(by_name) == {"reference model", "reward model", "critic"}
    assert by_name["reward model"].parameters == pytest.approx(0.494e9, rel=0.01)
    assert by_name["critic"].role == "trained"


def test_companions_are_checked_values() -> None:
    with pytest.raises(InputError, match="share 1 of"):
        Companion(name="engine", role="engine", share=1.0)
    with pytest.raises(InputError, match="role 'judge'"):
        Companion(name="x", role="judge")  # type: ignore[arg-type]
