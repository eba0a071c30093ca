"""Training commands and files from outside: whatever they hold, the answer is a plan or an `InputError`."""

import json
import random
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from trilemma.engines.training import framework_facts, read_training
from trilemma.errors import InputError

WORDS = [
    "-1",
    "0",
    "1",
    "3",
    "nan",
    "inf",
    "1e9",
    "9" * 30,
    "",
    "x",
    "$V",
    "[]",
    "{}",
    "true",
    "full",
    "a" * 5000,
    "([0]*3+[1]*5)",
]
VALUES = [
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
    {"a": 1},
    True,
    "auto",
    "cpu",
    10**30,
]
TRAINER = "train.py --model_name_or_path llama-2-7b --per_device_train_batch_size 1"


def attempt(framework: str, words: list[str]) -> None:
    with suppress(InputError):
        read_training(framework, words, gpus=8)


@pytest.mark.parametrize("seed", range(2))
def test_flags(seed: int) -> None:
    chance = random.Random(seed)
    megatron, titan, trainer = (
        framework_facts(name) for name in ("megatron_flags", "torchtitan", "transformers_flags")
    )
    starts = {
        "megatron": (
            "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8"
            " --seq-length 128 --micro-batch-size 1 --vocab-size 1000",
            [*megatron["values"], *megatron["switches"], *megatron["lists"]],
        ),
        "torchtitan": (
            "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b",
            [*titan["keys"], *titan["switches"]],
        ),
        "transformers": (f"torchrun --nproc_per_node 8 {TRAINER}", [*trainer["flags"], "fsdp", "lora_r"]),
    }
    for framework, (start, flags) in starts.items():
        for _ in range(60):
            more = [word for _ in range(3) for word in (f"--{chance.choice(flags)}", chance.choice(WORDS))]
            attempt(framework, [*shlex.split(start), *more])


@pytest.mark.parametrize("seed", range(2))
def test_files(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    axolotl, accelerate, deepspeed = (
        framework_facts(name) for name in ("axolotl_keys", "accelerate", "deepspeed_keys")
    )

    def some(keys: list[str]) -> dict[str, object]:
        return {chance.choice(keys): chance.choice(VALUES) for _ in range(3)}

    for _ in range(60):
        file = tmp_path / "a.yml"
        file.write_text(yaml.safe_dump({"base_model": "llama-2-7b", "sequence_len": 128, **some(axolotl["keys"])}))
        attempt("axolotl", ["axolotl", "train", str(file)])
        kind = chance.choice(["FSDP", "DEEPSPEED", "NO"])
        parts = {
            "fsdp_config": some(accelerate["fsdp"]),
            "deepspeed_config": some(accelerate["deepspeed"]),
            "parallelism_config": some(accelerate["parallelism"]),
        }
        file.write_text(
            yaml.safe_dump({"distributed_type": kind, "num_processes": 8, **parts, **some(accelerate["top"])})
        )
        attempt("accelerate", shlex.split(f"accelerate launch --config_file {file} {TRAINER}"))
        document = tmp_path / "d.json"
        zero = {"zero_optimization": some(deepspeed["zero_optimization"])}
        document.write_text(json.dumps({**zero, **some(deepspeed["top"])}))
        attempt("deepspeed", shlex.split(f"deepspeed --num_gpus 8 {TRAINER} --deepspeed {document}"))
