"""Losses that never hold all logits, by how large their pieces are, and models that TRL loads."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from training_plans import memory

from trilemma.cli.main import main
from trilemma.engines.extract import extract
from trilemma.engines.training import read_training
from trilemma.plans import recipe
from trilemma.quantities import GIB

_ALST = (
    "fit llama-3.1-8b --engine deepspeed --zero 3 --recompute full --micro-batch 1 --global-batch 1 --host-memory 1900"
    " --loss fused --loss-tile 2093 --json"
)


def _answer(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    main(shlex.split(words))
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    "more",
    [
        "--gpu h100-sxm --train 500000 --mlp-tiles 123 --offload optimizer=1.0,weights=1.0,activations=1.0",
        "--gpu h100-sxm:8 --cp 8 --train 3700000 --mlp-tiles 114 --offload optimizer=1.0,activations=1.0",
    ],
)
def test_arctic_long_sequences_fit(capsys: pytest.CaptureFixture[str], more: str) -> None:
    """arXiv 2506.13996: Llama-3.1-8B at 500,000 tokens on one H100 and at 3.7 million on eight; logits by GiB of FP32."""
    answer = _answer(capsys, f"{_ALST} {more}")
    assert answer["verdict"]["stage"] == "ok"
    assert answer["verdict"]["probability"] > 0.7


def test_a_tile_bounds_the_piece_whatever_the_sequence() -> None:
    plan: dict[str, Any] = {
        "recipe": recipe("pure-bf16"), "implementation": "transformers", "sp": False, "zero": 0, "global_batch": 1,
        "loss": "fused", "work": {"method": "lora", "rank": 8, "targets": ("q_proj",)},
    }  # fmt: skip
    for seq in (8192, 65536):
        found = memory("llama-3-8b", seq=seq, loss_tile=256, **plan).ledger.get("logits")
        assert found is not None
        assert found.bytes == pytest.approx(256 * 128256 * 12)
    whole = memory("llama-3-8b", seq=65536, **plan).ledger.get("logits")
    assert whole is not None
    assert whole.bytes / GIB > 2.5


@pytest.mark.parametrize(
    ("words", "loss", "tile"),
    [
        ("trl sft --model_name_or_path Qwen/Qwen3-8B", "fused", 256),
        ("trl sft --model_name_or_path Qwen/Qwen3-8B --loss_type nll", "full", None),
        ("trl sft --model_name_or_path Qwen/Qwen3-8B --use_liger_kernel", "fused", None),
        (
            "accelerate launch --num_processes 8 sft.py --model_name_or_path Qwen/Qwen3-8B --loss_type chunked_nll",
            "fused",
            256,
        ),
    ],
)
def test_losses_of_trl(words: str, loss: str, tile: int | None) -> None:
    """huggingface/trl pull request 5575: head and loss of 256 tokens at a time, 30.3 GB of logits become 2.1."""
    engine, own = extract(shlex.split(words))
    plan = read_training(engine, own, gpus=8).plan
    assert (plan.loss, plan.loss_tile) == (loss, tile)


@pytest.mark.parametrize(
    ("line", "tile"), [("cut_cross_entropy: true", 1), ("liger_fused_linear_cross_entropy: true", None)]
)
def test_losses_of_axolotl(tmp_path: Path, line: str, tile: int | None) -> None:
    document = "base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 4096\nmicro_batch_size: 1\nbf16: true\n" + line
    (tmp_path / "a.yml").write_text(document)
    engine, own = extract(["axolotl", "train", str(tmp_path / "a.yml")])
    found = read_training(engine, own, gpus=1)
    assert (found.plan.loss, found.plan.loss_tile) == ("fused", tile)


def test_trl_loads_fp32_unless_told_otherwise() -> None:
    """trl/trainer/model_config.py: dtype is float32; DeepSpeed casts the model, a quantised one computes as it trains."""

    def read(more: str) -> str | None:
        engine, own = extract(shlex.split(f"trl sft --model_name_or_path Qwen/Qwen3-8B --use_peft {more}"))
        return read_training(engine, own, gpus=1).workload.base_format

    assert read("") == "fp32"
    assert read("--dtype bfloat16") is None
    assert read("--load_in_4bit") is None
    assert read("--accelerate_config zero2") is None


def test_a_tile_alone_means_a_fused_loss(capsys: pytest.CaptureFixture[str]) -> None:
    """A tile did nothing, without a word, beside the loss of whole logits that a framework has by itself."""
    words = "fit llama-3.1-8b --gpu h100-sxm:8 --train 8192 --global-batch 64 --json"
    whole, alone, both = (
        {line["name"]: line["bytes"] for line in _answer(capsys, f"{words} {more}")["memory"]["items"]}["logits"]
        for more in ("", "--loss-tile 256", "--loss fused --loss-tile 256")
    )
    assert alone == both < whole / 2


def test_a_tile_of_whole_logits_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = "fit llama-3.1-8b --gpu h100-sxm:8 --train 8192 --global-batch 64 --loss full --loss-tile 256"
    assert main(shlex.split(words)) == 2
    told = capsys.readouterr().err.strip()
    assert "--loss-tile 256" in told
    assert "--loss fused" in told
    assert "\n" not in told
