"""Unsloth: flags of its script, and arguments of the calls of others, which are read and never run."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from trilemma.engines.extract import extract
from trilemma.engines.training import TrainingCommand, read_training
from trilemma.engines.unsloth.script import call_arguments
from trilemma.errors import InputError

CLI = "python unsloth-cli.py"
SCRIPT = """
import os
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
max_seq_length = {seq}
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="{model}", max_seq_length=max_seq_length, load_in_4bit={four}, full_finetuning={full}, token=os.environ["X"],
)
model = FastLanguageModel.get_peft_model(model, r=32, target_modules=["q_proj", "v_proj"], lora_alpha=64)
trainer = SFTTrainer(model=model, args=SFTConfig(
    per_device_train_batch_size=4, gradient_accumulation_steps=2, optim="adamw_8bit"))
open("ran", "w").write("x")
"""


def read(words: str, gpus: int = 1) -> TrainingCommand:
    framework, own = extract(shlex.split(words))
    assert framework == "unsloth"
    return read_training(framework, own, gpus=gpus)


def shape(found: TrainingCommand) -> dict[str, Any]:
    load = found.workload
    return {
        "model": found.model, "method": load.method, "rank": load.rank, "seq": load.seq, "batch": load.global_batch,
        "micro": int(found.plan.micro_batch), "again": found.plan.recompute.mode, "optimizer": found.plan.optimizer.name,
    }  # fmt: skip


COMMANDS: list[tuple[str, dict[str, Any]]] = [
    (
        f"{CLI}",
        {"method": "lora", "rank": 16, "seq": 2048, "micro": 2, "batch": 8, "again": "full", "optimizer": "adamw-8bit"},
    ),
    (
        f"{CLI} --model_name unsloth/llama-3-8b --load_in_4bit --r 64 --max_seq_length 8192",
        {"method": "qlora", "rank": 64, "seq": 8192},
    ),
    (f"{CLI} --model_name unsloth/Qwen3-8B --use_gradient_checkpointing false", {"again": "none"}),
    (
        f"{CLI} --model_name unsloth/Qwen3-8B --per_device_train_batch_size 4 --gradient_accumulation_steps 8",
        {"micro": 4, "batch": 32},
    ),
    (f"{CLI} --model_name unsloth/Qwen3-8B --optim adamw_torch", {"optimizer": "adamw-like-weights"}),
    (
        f"{CLI} --model_name unsloth/Qwen3-8B --lora_alpha 32 --lora_dropout 0.1 --bias none --use_rslora --random_state 3407",
        {},
    ),
    (f"{CLI} --model_name unsloth/Qwen3-8B --max_steps 100 --warmup_steps 5 --report_to tensorboard --save_model", {}),
    (
        f"CUDA_VISIBLE_DEVICES=0 {CLI} --model_name unsloth/Qwen3-14B --load_in_4bit --dtype bfloat16",
        {"method": "qlora"},
    ),
    (f"nohup {CLI} --model_name unsloth/Qwen3-8B --weight_decay 0.01 --seed 1 --learning_rate 2e-4", {}),
    (f"uv run {CLI} --model_name unsloth/Qwen3-8B --save_gguf --quantization q4_k_m q8_0", {}),
]


@pytest.mark.parametrize(("words", "expected"), COMMANDS)
def test_flags_of_its_script(words: str, expected: dict[str, Any]) -> None:
    found = read(words)
    assert {key: value for key, value in shape(found).items() if key in expected} == expected
    assert found.unknown_flags == ()


def test_arguments_of_a_script_s_calls(tmp_path: Path) -> None:
    path = tmp_path / "finetune.py"
    path.write_text(SCRIPT.format(seq=4096, model="unsloth/Qwen3-8B", four=True, full=False))
    found = shape(read(f"python {path}"))
    expected = {
        "method": "qlora",
        "rank": 32,
        "seq": 4096,
        "micro": 4,
        "batch": 8,
        "optimizer": "adamw-8bit",
        "again": "full",
    }
    assert {key: found[key] for key in expected} == expected
    assert not (tmp_path / "ran").exists()
    assert not Path("ran").exists()
    path.write_text(SCRIPT.format(seq=1024, model="unsloth/Qwen3-4B", four=False, full=True))
    assert shape(read(f"python {path}"))["method"] == "full"


def test_scripts_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("from unsloth import x\ndef (:\n")
    with pytest.raises(InputError, match="not readable Python"):
        read(f"python {path}")
    path.write_text("(" * 100_000)
    with pytest.raises(InputError, match="not readable Python"):
        call_arguments(path, ("SFTTrainer",))
