"""Commands of trainers with keys and values from outside: the answer is a plan or an `InputError`, nothing else."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from trilemma.engines.trainer import trainer
from trilemma.engines.training import framework_facts, read_training
from trilemma.errors import InputError

WORDS = [
    "-1", "0", "1", "3", "nan", "inf", "1e9", "9" * 30, "", "x", "$V", "[]", "{}", "true", "false", "None", "a" * 5000, "[1,2",
    "0.5", "a=b", "=", "{'a': 1}", "full", "grpo", "../x.yaml", "colocate", "\x00",
]  # fmt: skip
VALUES: list[Any] = [
    -1,
    0,
    1,
    2.5,
    float("nan"),
    float("inf"),
    None,
    "x",
    [],
    {},
    ["a", {}],
    {"a": {"b": 1}},
    True,
    "auto",
    10**30,
]
QWEN = "Qwen/Qwen2.5-7B-Instruct"
#: framework → (its table, the words of a plain command, how a key and a value are written)
STARTS = {
    "trl": ("trl", f"trl grpo --model_name_or_path {QWEN} --use_vllm", "--{}"),
    "llama-factory": ("llama_factory", f"llamafactory-cli train --model_name_or_path {QWEN} --bf16", "--{}"),
    "swift": ("swift", f"NPROC_PER_NODE=8 swift rlhf --model {QWEN} --rlhf_type ppo", "--{}"),
    "swift-megatron": ("swift_megatron", f"NPROC_PER_NODE=8 megatron sft --model {QWEN} --max_length 1024", "--{}"),
    "openrlhf": ("openrlhf", f"python -m openrlhf.cli.train_ppo_ray --pretrain {QWEN} --colocate_all_models", "--{}"),
    "verl": ("verl", f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path={QWEN}", "{}="),
    "torchtune": (
        "torchtune",
        "tune run --nproc_per_node 8 full_finetune_distributed --config llama3_1/8B_full",
        "{}=",
    ),
    "megatron-bridge": (
        "megatron_bridge",
        "torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config",
        "--{}",
    ),
    "unsloth": ("unsloth", "python unsloth-cli.py --model_name unsloth/Qwen3-8B", "--{}"),
}


@pytest.mark.parametrize("framework", STARTS)
def test_keys_and_values(framework: str) -> None:
    chance = random.Random(framework)
    table, start, spelled = STARTS[framework]
    of = trainer(table)
    counted = sorted({key for keys in of.meaning.values() for key in keys})
    keys = [*counted, *counted, *sorted(of.keys), "no_such_key", "a.b.c", "-", ""]
    for _ in range(120):
        words = start.split()
        for _ in range(3):
            key, value = spelled.format(chance.choice(keys)), chance.choice(WORDS)
            words += [f"{key}{value}"] if key.endswith("=") else [key, value] if chance.random() < 0.8 else [key]
        with suppress(InputError):
            read_training(framework, words, gpus=chance.choice([1, 8, None]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("framework", "table", "start", "model"),
    [
        ("trl", "trl", "trl dpo --config {}", "model_name_or_path"),
        ("llama-factory", "llama_factory", "llamafactory-cli train {}", "model_name_or_path"),
        ("swift", "swift", "swift sft {}", "model"),
        ("torchtune", "torchtune", "tune run --nproc_per_node 2 full_finetune_distributed --config {}", "model"),
    ],
)
def test_files(tmp_path: Path, framework: str, table: str, start: str, model: str) -> None:
    chance = random.Random(framework)
    keys = sorted({key for keys in trainer(table).meaning.values() for key in keys})
    for number in range(60):
        path = tmp_path / f"{number}.yaml"
        document = {model: QWEN, **{chance.choice(keys): chance.choice(VALUES) for _ in range(4)}}
        path.write_text(yaml.safe_dump(chance.choice([document, document, document, [document], "x", None])))
        with suppress(InputError):
            read_training(framework, start.format(path).split(), gpus=8)


def test_the_flags_of_a_script() -> None:
    """AWS's example is a script with flags of its own, and no table of a trainer."""
    chance = random.Random("fsdp-example")
    flags = framework_facts("fsdp_example")["flags"]["values"]
    for _ in range(200):
        words = ["torchrun", "--nproc_per_node", "8", "train.py", "--model_type", "llama_v3"]
        for _ in range(3):
            words += [f"--{chance.choice(flags)}", chance.choice(WORDS)]
        with suppress(InputError):
            read_training("fsdp-example", words, gpus=chance.choice([1, 8, None]))


def test_every_trainer_that_is_read_is_tried() -> None:
    assert set(framework_facts("trainers")["readers"]) - {"fsdp-example"} == set(STARTS)
