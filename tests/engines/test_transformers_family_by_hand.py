"""The Trainer's flags and files as TRL, Accelerate and Transformers document them, and the small readers that they share.

transformers/training_args.py and trainer's FSDP words, accelerate/commands/launch.py, Hydra's override grammar.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trilemma.engines.trainer import flat, from_file, from_overrides, is_configuration
from trilemma.engines.training import TrainingCommand, read_training
from trilemma.errors import InputError
from trilemma.memory.weights import WeightTable, rank_weights, shard_share
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, Offload, Recompute
from trilemma.timing.queueing import percentiles_s, shared_queue_wait_s, waiting_s

QWEN = "Qwen/Qwen2.5-7B-Instruct"
BASE = f"train.py --model_name_or_path {QWEN} --max_length 2048"


def at(value: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        value = value[int(name)] if name.isdigit() else getattr(value, name)
    return value


def run(words: str, *, start: str = "torchrun --nproc_per_node 8") -> TrainingCommand:
    return read_training("transformers", f"{start} {BASE} {words}".split())


FLAGS: list[tuple[str, dict[str, Any]]] = [
    ("", {"gpus": 8, "plan.layout": Layout(dp=8), "plan.zero": 0, "plan.micro_batch": 8, "workload.global_batch": 64,
          "plan.attention": "sdpa", "plan.recompute": Recompute(), "plan.loss": "full", "plan.compiled": False,
          "plan.optimizer.name": "adamw-like-weights"}),
    ("--per_device_train_batch_size 2 --gradient_accumulation_steps 4", {"plan.micro_batch": 2,
     "workload.global_batch": 64}),
    ("--gradient_checkpointing true", {"plan.recompute": Recompute(mode="full")}),
    ("--gradient_checkpointing false", {"plan.recompute": Recompute()}),
    ("--attn_implementation eager", {"plan.attention": "eager"}),
    ("--attn_implementation flash_attention_2", {"plan.attention": "flash"}),
    ("--attn_implementation flex_attention", {"plan.attention": "flash"}),
    ("--use_liger_kernel true", {"plan.loss": "fused"}),
    ("--torch_compile true", {"plan.compiled": True}),
    ("--bf16 true", {"plan.recipe.activations": "bf16"}),
    ("--fp16 true", {"plan.recipe.activations": "fp16"}),
    ("--bf16 false", {"plan.recipe.activations": "fp32"}),
    ("--bf16 --fsdp full_shard", {"plan.zero": 3, "plan.flat_parameters": True, "plan.reshard": True,
     "plan.shard_group": None}),
    ("--bf16 --fsdp shard_grad_op", {"plan.zero": 3, "plan.reshard": False}),
    ("--bf16 --fsdp hybrid_shard", {"plan.zero": 3, "plan.shard_group": None}),  # one node is all ranks
    ("--bf16 --fsdp no_shard", {"plan.zero": 0}),
    ("--bf16 --fsdp false", {"plan.zero": 0}),
    ("--bf16 --fsdp 0", {"plan.zero": 0}),
    ("--bf16 --fsdp full_shard --fsdp_config {\"fsdp_version\":2}", {"plan.zero": 3, "plan.flat_parameters": False}),
    ("--bf16 --fsdp full_shard --fsdp_config {\"fsdp_version\":2,\"reshard_after_forward\":false}",
     {"plan.reshard": False}),
    ("--bf16 --use_peft --lora_r 16", {"workload.method": "lora", "workload.rank": 16}),
    ("--bf16 --use_peft --lora_r 16 --load_in_4bit", {"workload.method": "qlora"}),
    ("--bf16 --use_peft --lora_r 16 --load_in_8bit", {"workload.method": "lora", "workload.base_format": "int8"}),
    ("--bf16 --use_peft --lora_r 16 --use_dora true", {"workload.method": "dora"}),
    ("--bf16 --use_peft --lora_r 16 --lora_target_modules q_proj v_proj", {"workload.targets": ("q_proj", "v_proj")}),
    ("--bf16 --use_peft --lora_r 16 --lora_target_modules all-linear", {"workload.targets": ()}),
    ("--bf16 --max_steps 10", {"workload.tokens": 10 * 64 * 2048}),
    ("--bf16 --max_steps -1", {"workload.tokens": None}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), FLAGS)
def test_a_flag_of_the_trainer(words: str, expected: dict[str, Any]) -> None:
    found = run(words)
    assert {name: at(found, name) for name in expected} == expected


def test_groups_of_a_node_where_there_are_two() -> None:
    found = run("--bf16 --fsdp hybrid_shard", start="torchrun --nproc_per_node 8 --nnodes 2")
    assert (found.gpus, found.plan.shard_group) == (16, 8)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--fsdp full_shard --fsdp_config {x", "is not valid JSON; give an object or a file"),
        ("--dtype int3", "'int3' is none of"),
        ("--per_device_train_batch_size 0", "per_device_train_batch_size"),
        ("--deepspeed {x", "deepspeed"),
    ],
)
def test_values_that_the_trainer_has_not(words: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        run(words)


@pytest.mark.parametrize(
    ("preset", "zero", "offload"), [("zero1", 1, 0.0), ("zero2", 2, 0.0), ("zero3", 3, 0.0), ("zero3_offload", 3, 1.0)]
)
def test_files_of_deepspeed_that_trainers_come_with(preset: str, zero: int, offload: float) -> None:
    found = run(f"--bf16 --deepspeed {preset}")
    assert (found.plan.zero, found.plan.offload.optimizer) == (zero, offload)
    named = run(f"--bf16 --deepspeed configs/{preset}.json")
    assert named.plan.zero == zero


def test_deepspeed_as_text_and_as_a_file(tmp_path: Path) -> None:
    text = '{"zero_optimization":{"stage":2},"bf16":{"enabled":true}}'
    assert run(f"--bf16 --deepspeed {text}").plan.zero == 2
    path = tmp_path / "zero3.json"
    path.write_text(text)
    assert run(f"--bf16 --deepspeed {path}").plan.zero == 2
    with pytest.raises(InputError, match="--bf16 is not what the DeepSpeed file enables"):
        run("--bf16 --deepspeed " + '{"fp16":{"enabled":true}}')


LAUNCHED: list[tuple[str, dict[str, Any]]] = [
    ("--num_processes 4", {"gpus": 4, "plan.zero": 0}),
    ("--num_processes 16 --num_machines 2", {"gpus": 16, "gpus_per_node": 8}),
    ("--num_processes 4 --mixed_precision bf16", {"plan.recipe.activations": "bf16"}),
    ("--num_processes 4 --use_fsdp", {"plan.zero": 3}),
    ("--num_processes 4 --use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward false",
     {"plan.zero": 3, "plan.reshard": False, "plan.flat_parameters": False}),
    ("--num_processes 4 --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu",
     {"plan.zero": 3, "plan.offload": Offload(optimizer=1.0)}),
    ("--num_processes 4 --use_deepspeed", {"plan.zero": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), LAUNCHED)
def test_flags_of_accelerate_launch(words: str, expected: dict[str, Any]) -> None:
    found = read_training("accelerate", f"accelerate launch {words} {BASE}".split())
    assert {name: at(found, name) for name in expected} == expected


def test_flags_of_the_launcher_go_over_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text(
        "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 1, fsdp_reshard_after_forward: true}\n"
    )
    start = f"accelerate launch --config_file {path}"
    assert read_training("accelerate", f"{start} {BASE}".split()).gpus == 8
    found = read_training("accelerate", f"{start} --num_processes 4 --fsdp_version 2 {BASE}".split())
    assert (found.gpus, found.plan.flat_parameters, found.plan.reshard) == (4, False, True)


def test_files_of_trainers_as_one_level(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: {b: {c: 1}, d: [2]}\ne: x\n")
    assert from_file(str(path), nested=True) == {"a.b.c": 1, "a.d": [2], "e": "x"}
    assert from_file(str(path)) == {"a": {"b": {"c": 1}, "d": [2]}, "e": "x"}
    path.write_text("- 1\n")
    with pytest.raises(InputError, match="holds no mapping"):
        from_file(str(path))


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {"a": 1}


def test_files_that_nest_too_deep() -> None:
    deepest = next(depth for depth in range(1, 40) if _too_deep(depth))
    assert dict(flat(nested(deepest - 1))) == {".".join("a" * deepest): 1}
    with pytest.raises(InputError, match=f"nests deeper than {deepest - 1} sections"):
        dict(flat(nested(deepest)))


def _too_deep(depth: int) -> bool:
    try:
        dict(flat(nested(depth)))
    except InputError:
        return True
    return False


def test_overrides_of_hydra() -> None:
    words = ["a.b=1", "+c=x", "++d.e='y z'", "~f=1", "--g-h=[1, 'two', ]", "no_sign", "=3", "a b=4", "i=", "j=[x"]
    assert from_overrides(words) == {
        "a.b": "1", "c": "x", "d.e": "y z", "f": "1", "g_h": ["1", "two"], "i": "", "j": "[x",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "named"),
    [("a.yaml", True), ("a.YML", True), ("a.json", True), ("--a.yaml", False), ("a.txt", False), ("x" * 4091 + ".yml", True),
     ("x" * 4092 + ".yml", False)],
)  # fmt: skip
def test_words_that_name_a_file(word: str, named: bool) -> None:
    assert is_configuration(word) is named


def test_json_is_a_configuration_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"model_name_or_path": QWEN}))
    assert from_file(str(path)) == {"model_name_or_path": QWEN}


@pytest.mark.parametrize(
    ("tp", "ep", "share"),
    [(4, 1, 1 / 4), (4, 2, 1 / 2), (1, 2, 1 / 2), (2, 3, 22 / 64), (3, 1, 470 / 1408), (8, 64, 1 / 64)],
)
def test_experts_are_cut_or_spread(tp: int, ep: int, share: float) -> None:
    """64 experts of 1,408 columns: whole ones on the ranks of ``ep``, else columns over ``tp``."""
    found = shard_share(shard="column", units=1408, experts=64, tp=tp, ep=ep)
    assert float(found) == pytest.approx(share)
    assert float(shard_share(shard="column", units=1408, experts=64, tp=1, ep=1, expert_tp=4)) == 1 / 4


def test_what_stands_at_the_ends_of_a_pipeline() -> None:
    for name in ("llama-3.2-1b", "llama-3.1-8b", "gemma-3-12b", "deepseek-v3"):
        model = load_model(name)
        table, depth = WeightTable.of(model), len(model.layers)
        part = {
            key: float(sum(t.bytes for t in model.tensors if t.part == key))
            for key in ("embedding", "head", "vision", "mtp")
        }
        decoder = sum(t.bytes for t in model.tensors if t.part == "layers" and t.layer is not None)
        rest = sum(t.bytes for t in model.tensors if t.part == "layers" and t.layer is None)
        matrix = sum(t.bytes for t in model.tensors if t.part == "embedding" and t.shard == "vocab")
        one = rank_weights(table, start=0, stop=depth, first=True, last=True, tp=1)
        assert float(one.text) == pytest.approx(decoder + rest + part["embedding"] + part["head"])
        assert (float(one.vision), float(one.mtp)) == (part["vision"], part["mtp"])
        first = rank_weights(table, start=0, stop=0, first=True, last=False, tp=1)
        assert (float(first.text), float(first.vision), float(first.mtp)) == (part["embedding"], part["vision"], 0)
        last = rank_weights(table, start=0, stop=0, first=False, last=True, tp=1)
        tied = matrix if model.tied_embeddings else 0
        assert float(last.text) == pytest.approx(part["head"] + rest + tied)
        assert (float(last.vision), float(last.mtp)) == (0, part["mtp"])
        middle = rank_weights(table, start=1, stop=3, first=False, last=False, tp=1)
        assert float(middle.text) == sum(t.bytes for t in model.tensors if t.part == "layers" and t.layer in (1, 2))
        assert table.total_bytes == pytest.approx(sum(t.bytes for t in model.tensors))


def test_experts_are_padded_where_a_kernel_asks_for_it() -> None:
    model = load_model("gpt-oss-20b")
    plain, padded = WeightTable.of(model), WeightTable.of(model, expert_padding={"mxfp4": (1, 256)})
    matrices = [t for t in model.tensors if t.experts and t.format.name == "mxfp4" and len(t.shape) > 1]
    grown = 0.0
    for one in matrices:
        side = one.shape[-1] if one.shard == "column" else one.shape[-2]
        grown += one.bytes * (-(-side // 256) * 256 / side - 1) if one.shard in ("column", "row") else 0.0
    assert grown > 0
    assert padded.total_bytes - plain.total_bytes == pytest.approx(grown)
    other = WeightTable.of(model, expert_padding={"nvfp4": (128, 256)})
    assert other.total_bytes == plain.total_bytes


def test_queues_by_their_laws() -> None:
    # One worker: M/D/1 waits busy / (2 · (1 − busy)) of a service (Pollaczek and Khinchine).
    for busy in (0.1, 0.5, 0.9):
        assert float(shared_queue_wait_s(busy, 1, 3.0)) == pytest.approx(3.0 * busy / (1 - busy) / 2)
        several = 2.0 * busy ** ((2 * 5) ** 0.5 - 1) / (4 * (1 - busy)) / 2
        assert float(shared_queue_wait_s(busy, 4, 2.0)) == pytest.approx(several)
    assert float(shared_queue_wait_s(1.0, 2, 1.0)) == float(shared_queue_wait_s(3.0, 2, 1.0)) == float("inf")
    assert float(waiting_s(10, 4, 2.0)) == 3.0
    assert float(waiting_s(3, 4, 2.0)) == 0.0
    median, late = percentiles_s(1.0, 2.0)
    assert (float(median), float(late)) == pytest.approx((1 + 2 * 0.6931472, 1 + 2 * 4.6051702))
