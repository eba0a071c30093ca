"""Whole commands of public examples and issues whose memory or step somebody wrote down, and what their kinds hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import trilemma as tl
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.training import estimate_training
from trilemma.quantities import GIB

_MEGATRON = (
    "--micro_batch_size 1 --global_batch_size 16 --recompute_granularity full --recompute_method uniform"
    " --recompute_num_layers 1 --cross_entropy_loss_fusion true --max_length 8192 --sequence_parallel true"
    " --attention_backend flash"
)


def _checked(command: str, gpu: str) -> Estimate:
    return tl.check(command, gpu=gpu)


def _gib(answer: Estimate) -> float:
    return answer.memory.total.value / GIB


def _line(answer: Estimate, name: str) -> float:
    return next((float(line.bytes) / GIB for line in answer.memory.ledger if line.name == name), 0.0)


def test_a_precision_aware_optimizer_on_the_host_takes_its_fp32_weights_along() -> None:
    # modelscope/ms-swift examples/megatron/dense/72b_offload.sh: 8 x 65 GiB, 80 s a step
    command = (
        f"NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-72B-Instruct --tensor_model_parallel_size 8 {_MEGATRON}"
        " --packing true --optimizer_cpu_offload true --use_precision_aware_optimizer true --optimizer_offload_fraction 1"
    )
    answer = _checked(command, "a100-sxm4-80gb:8")
    assert answer.verdict.stage == "ok"
    assert _line(answer, "master_weights") == 0.0
    assert 50 < _gib(answer) < 70
    assert answer.speed.step_s.interval.low < 80 < answer.speed.step_s.interval.high
    # without it the distributed optimizer keeps them on the card (distrib_optimizer.py)
    kept = _checked(command.replace("--use_precision_aware_optimizer true", ""), "a100-sxm4-80gb:8")
    assert _line(kept, "master_weights") == pytest.approx(72.7e9 * 4 / 8 / GIB, rel=0.01)


def test_frozen_weights_of_narrow_floats_are_expanded_under_adapters() -> None:
    # modelscope/ms-swift examples/models/gpt_oss/train.sh: 42 GB; 24 GB cards cannot hold 20.9 billion weights of 2 bytes
    command = (
        "swift sft --model openai/gpt-oss-20b --tuner_type lora --torch_dtype bfloat16 --per_device_train_batch_size 1"
        " --gradient_accumulation_steps 16 --lora_rank 8 --target_modules all-linear --max_length 2048"
    )
    answer = _checked(command, "a100-sxm4-80gb:1")
    assert _line(answer, "weights") == pytest.approx(20.9e9 * 2 / GIB, rel=0.01)
    assert answer.memory.total.low < 42 * GIB < answer.memory.total.high
    small = _checked(command, "rtx-4090:1")
    assert (small.verdict.stage, small.verdict.probability > 0.95) == ("oom_runtime", True)


@pytest.mark.parametrize(("model", "stored"), [("Qwen/Qwen2.5-7B-Instruct-AWQ", 5.2), ("qwen2.5-7b", 14.2)])
def test_frozen_integers_and_sixteen_bits_stay_as_they_are(model: str, stored: float) -> None:
    command = f"swift sft --model {model} --tuner_type lora --max_length 2048 --per_device_train_batch_size 1"
    assert _line(_checked(command, "a100-sxm4-80gb:1"), "weights") == pytest.approx(stored, rel=0.02)


def test_adapters_on_every_linear_layer_reach_experts_in_megatron() -> None:
    # modelscope/ms-swift examples/train/flash_attention_3/mcore.sh, 4 x H20: 49 GiB, 15.2 to 17.2 s
    command = (
        "NPROC_PER_NODE=4 megatron sft --model Qwen/Qwen3-30B-A3B-Base --tuner_type lora --lora_rank 32 --packing true"
        f" --target_modules all-linear --expert_model_parallel_size 4 {_MEGATRON}"
    )
    answer = _checked(command, "h20:4")
    experts = 128 / 4 * 48 * 32 * 3 * (2048 + 768)  # of one rank: experts, layers, rank, gate and up and down
    assert _line(answer, "adapter") == pytest.approx(experts * 2 / GIB, rel=0.1)
    assert answer.memory.total.low < 49 * GIB < answer.memory.total.high
    assert answer.speed.step_s.interval.low < 15.2 < answer.speed.step_s.interval.high
    only = _checked(command.replace("all-linear", "linear_qkv linear_proj"), "h20:4")
    assert _line(only, "adapter") < 0.05 * _line(answer, "adapter") + 0.05


def test_a_longest_example_that_does_not_fit_is_no_sure_no_where_short_ones_do() -> None:
    # modelscope/ms-swift examples/megatron/sft.sh: 2 x 80 GiB, alpaca's examples are far shorter than 2,048 tokens
    words = _MEGATRON.replace("micro_batch_size 1", "micro_batch_size 16").replace("8192", "2048")
    command = f"NPROC_PER_NODE=2 megatron sft --model Qwen/Qwen2.5-7B-Instruct --tensor_model_parallel_size 2 {words}"
    answer = _checked(command, "a100-sxm4-80gb:2")
    assert answer.verdict.stage == "oom_runtime"
    assert answer.verdict.probability < 0.8
    assert any(one.code == "length-is-a-cap" for one in answer.warnings)
    # what no length saves stays as sure: 14.2 GiB of weights and as much of gradients on a card of 24
    hopeless = _checked(command, "rtx-4090:2")
    assert hopeless.verdict.probability > 0.99
    assert not any(one.code == "length-is-a-cap" for one in hopeless.warnings)


def test_packed_examples_attend_to_themselves() -> None:
    # modelscope/ms-swift examples/train/sequence_parallel/sequence_parallel_512k.sh, 8 x A100: 150 s; as one text 12 times that
    command = (
        "NPROC_PER_NODE=8 swift sft --model Qwen/QwQ-32B --tuner_type lora --torch_dtype bfloat16 --packing true"
        " --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --max_length 512000 --use_liger_kernel true"
        " --deepspeed zero3_offload --attn_impl flash_attn --sequence_parallel_size 8"
    )
    answer = _checked(command, "a100-sxm4-80gb:8")
    step = answer.speed.step_s.interval
    assert step.low < 150 < step.high
    question = answer.question
    whole = estimate_training(replace(question, workload=replace(question.workload, examples="full")))
    assert whole.speed.step_s.interval.value > 5 * step.value
    # stated lengths leave nothing open, and are met at the ends of the range
    stated = replace(question, workload=replace(question.workload, document=512_000))
    assert estimate_training(stated).speed.step_s.interval.value == pytest.approx(
        whole.speed.step_s.interval.value, rel=1e-9
    )


def test_long_text_in_packs_of_32k() -> None:
    # modelscope/ms-swift examples/megatron/long_text.sh, 4 x A100: 50 GB, 23 s
    words = _MEGATRON.replace("8192", "32768").replace("global_batch_size 16", "global_batch_size 8")
    command = (
        f"NPROC_PER_NODE=4 megatron sft --model Qwen/Qwen2.5-7B --packing true --tensor_model_parallel_size 4 {words}"
    )
    answer = _checked(command, "a100-sxm4-80gb:4")
    assert answer.speed.step_s.interval.low < 23 < answer.speed.step_s.interval.high
    assert answer.memory.total.low < 50e9 < answer.memory.total.high


def test_scripts_that_reckon_their_own_counts(tmp_path: Path) -> None:
    # modelscope/ms-swift examples/train/rlhf/ppo/full.sh: 8 x 65 GiB; one GPU alone would need four times as much
    script = tmp_path / "ppo.sh"
    script.write_text(
        "nproc_per_node=8\n"
        "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \\\nNPROC_PER_NODE=$nproc_per_node \\\nswift rlhf --rlhf_type ppo"
        " --model meta-llama/Llama-3.1-8B-Instruct --reward_model meta-llama/Llama-3.1-8B-Instruct --tuner_type full"
        " --torch_dtype bfloat16 --per_device_train_batch_size 1"
        " --gradient_accumulation_steps $(expr 16 / $nproc_per_node) --max_length 2048 --deepspeed zero3\n"
    )
    answer = tl.check(str(script), gpu="a100-sxm4-80gb:8")
    assert answer.question.plan.layout.dp == 8
    assert answer.question.workload.global_batch == 16
    assert answer.verdict.stage == "ok"


@pytest.mark.parametrize(
    ("reckoned", "batch"), [("$((64 / 8))", 64), ("$(expr 4 \\* 2)", 64), ("$((2*4))", 64), ("$(expr 9 % 5)", 32)]
)
def test_arithmetic_of_shells(tmp_path: Path, reckoned: str, batch: int) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        f"NPROC_PER_NODE=8 swift sft --model qwen2.5-7b --deepspeed zero3 --max_length 1024"
        f" --per_device_train_batch_size 1 --gradient_accumulation_steps {reckoned}\n"
    )
    assert tl.check(str(script), gpu="h100-sxm:8").question.workload.global_batch == batch


def test_llama_factory_by_its_script_and_a_file(tmp_path: Path) -> None:
    # hiyouga/LLaMA-Factory issue 3631: torchrun … src/train.py FILE, 8 x A800: out of memory
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        "lora_target: q_proj,v_proj\ndeepspeed: examples/deepspeed/ds_z3_config.json\ncutoff_len: 8192\n"
        "per_device_train_batch_size: 6\ngradient_accumulation_steps: 8\nbf16: true\n"
    )
    command = f"python -m torch.distributed.run --nproc_per_node 8 src/train.py {tmp_path / 'sft.yaml'}"
    answer = _checked(command, "a800-sxm4-80gb:8")
    assert answer.question.workload.targets == ("q_proj", "v_proj")
    assert answer.verdict.stage == "oom_runtime"


def test_openrlhf_before_ray_holds_four_models() -> None:
    # OpenRLHF issue 519: 8 x H100, ZeRO-2, Adam on the host: out of memory
    command = (
        "deepspeed --module openrlhf.cli.train_ppo --pretrain meta-llama/Meta-Llama-3-8B --reward_pretrain"
        " meta-llama/Meta-Llama-3-8B --micro_train_batch_size 2 --train_batch_size 128 --prompt_max_len 1024"
        " --generate_max_len 1024 --zero_stage 2 --bf16 --adam_offload --flash_attn --gradient_checkpointing"
    )
    answer = _checked(command, "h100-sxm:8")
    assert _line(answer, "reference_models") == pytest.approx(2 * 8.03e9 * 2 / GIB, rel=0.01)
    assert _line(answer, "critic") > 14
    assert answer.question.workload.seq == 2048


def test_a_mixture_on_a_card_that_no_mixture_told_has_the_wide_range() -> None:
    # modelscope/ms-swift examples/megatron/moe/deepseek_v3.sh, 8 x A100: 9 s, 60 GiB
    command = (
        "NPROC_PER_NODE=8 megatron sft --model moonshotai/Moonlight-16B-A3B-Instruct --pipeline_model_parallel_size 2"
        f" --decoder_last_pipeline_num_layers 13 --expert_model_parallel_size 4 --packing true {_MEGATRON}"
    )
    answer = _checked(command, "a100-sxm4-80gb:8")
    step = answer.speed.step_s.interval
    assert step.high > 2 * step.value
    assert answer.memory.total.high > 60 * GIB


def _lora_over_nodes(folder: Path, nodes: int) -> list[str]:
    (folder / "z3.yaml").write_text(
        "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
        "lora_target: all\ndeepspeed: examples/deepspeed/ds_z3_config.json\ncutoff_len: 1024\n"
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nfp16: true\n"
    )
    started = [f"NNODES={nodes}", "NPROC_PER_NODE=8"] if nodes > 1 else []
    return [*started, "llamafactory-cli", "train", str(folder / "z3.yaml")]


def test_a_slow_network_adds_its_own_seconds_to_those_beside_the_wire(tmp_path: Path) -> None:
    # hiyouga/LLaMA-Factory issue 5014: 4 s a step on 8 x A800, 90 s on two nodes over 10GbE
    one = tl.check(_lora_over_nodes(tmp_path, 1), gpu="a800-sxm4-80gb:8")
    assert 1.5 < one.speed.step_s.interval.value < 5
    command = _lora_over_nodes(tmp_path, 2)
    slow, usual, plain = (
        tl.check(command, gpu="a800-sxm4-80gb:16", **more).speed.step_s.interval
        for more in ({"network": "10GbE"}, {"network": "8x200Gb/s"}, {})
    )
    assert slow.low < 90 < slow.high
    assert usual.value == pytest.approx(plain.value, rel=1e-9)  # 25 GB/s a card is what A100s usually have
    # a slower wire is never faster, and never slower than in proportion to its rate
    rates = [tl.check(command, gpu="a800-sxm4-80gb:16", network=f"{gb}GB/s") for gb in (100, 50, 10, 1)]
    seconds = [rate.speed.step_s.interval.value for rate in rates]
    assert seconds == sorted(seconds)
    assert all(more < less * 10 for less, more in pairwise(seconds))


def test_one_process_that_spreads_layers_over_cards() -> None:
    # modelscope/ms-swift examples/train/multi-gpu/device_map/train.sh: 2 x 76 GiB
    command = (
        "CUDA_VISIBLE_DEVICES=0,1 swift sft --model Qwen/Qwen2.5-72B-Instruct --tuner_type lora --torch_dtype bfloat16"
        " --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --max_length 2048"
    )
    two = _checked(command, "a100-sxm4-80gb:2")
    assert (two.verdict.stage, two.question.plan.schedule) == ("ok", "sequential")
    assert 66 < _gib(two) < 80
    # one card works while the other waits: as long as one card alone would take, but for the fixed part
    alone = _checked(command.replace("0,1", "0"), "a100-sxm4-80gb:1")
    assert two.speed.step_s.interval.value == pytest.approx(alone.speed.step_s.interval.value, rel=0.05)
    assert alone.verdict.stage == "oom_runtime"


@pytest.mark.parametrize(("gathers", "fits"), [("", False), ("--ds3_gather_for_generation false", True)])
def test_weights_are_gathered_whole_to_generate_under_zero_3(gathers: str, fits: bool) -> None:
    # modelscope/ms-swift issue 3871: QwQ-32B, GRPO without vLLM, ZeRO-3 on 8 cards of 96 GB: out of memory
    command = (
        "NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/QwQ-32B --gradient_checkpointing true --use_vllm false"
        " --tuner_type full --torch_dtype bfloat16 --max_completion_length 2048 --per_device_train_batch_size 1"
        f" --gradient_accumulation_steps 8 --max_length 2048 --num_generations 8 --deepspeed zero3 {gathers}"
    )
    answer = _checked(command, "h20:8")
    assert answer.fits == fits
    held = sum(_line(answer, one) for one in ("weights", "master_weights", "optimizer", "reference_models"))
    whole = 32.8e9 * 2 / GIB
    assert (_gib(answer) > held + whole) == (not fits)


def test_sharded_state_travels_as_shards() -> None:
    # pytorch/torchtune issue 1871: Llama 3.1 70B whole on 8 RTX 4090 with 500 GB of host memory: 14 GB a card, the host runs out
    command = (
        "tune run --nproc_per_node 8 full_finetune_distributed --config llama3_1/70B_full fsdp_cpu_offload=True"
        " tokenizer.max_seq_len=1000 batch_size=1"
    )
    answer = tl.check(command, gpu="rtx-4090:8", host_memory="465")
    assert answer.verdict.stage == "oom_runtime"
    assert "host memory" in answer.verdict.reason
    assert answer.memory.total.low < 14 * GIB < answer.memory.total.high
    assert not any(one.code == "length-is-a-cap" for one in answer.warnings)
