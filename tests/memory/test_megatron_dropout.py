"""Megatron-LM's default dropout keeps masks; its unfused attention keeps what its fused softmax does."""

import shlex
from dataclasses import replace

import pytest
from training_plans import line_bytes, memory

from trilemma.engines.megatron.write import write
from trilemma.engines.training import read_training
from trilemma.hardware.catalogue import find
from trilemma.models.resolve import load_model
from trilemma.plans import TrainingPlan
from trilemma.search.training_layouts import TrainingConstraints
from trilemma.search.training_single import single_training_plan
from trilemma.workloads import TrainingWorkload

COMMAND = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048"
    " --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 32 --vocab-size 50304 --bf16"
)


def plan(more: str = "") -> TrainingPlan:
    return read_training("megatron", shlex.split(f"{COMMAND} {more}"), gpus=8).plan


def test_a_tenth_of_both_is_the_default() -> None:
    assert (plan().hidden_dropout, plan().attention_dropout) == (True, True)
    off = plan("--hidden-dropout 0.0 --attention-dropout 0")
    assert (off.hidden_dropout, off.attention_dropout) == (False, False)


@pytest.mark.parametrize(("name", "layers", "hidden"), [("llama-3.1-8b", 32, 4096), ("llama-2-13b", 40, 5120)])
def test_masks_are_a_byte_for_each_value_after_both_halves(name: str, layers: int, hidden: int) -> None:
    common = {"seq": 2048, "dp": 8, "global_batch": 8}
    dropped, plain = (memory(name, hidden_dropout=flag, **common) for flag in (True, False))  # type: ignore[arg-type]
    more = line_bytes(dropped, "activations") - line_bytes(plain, "activations")
    assert more == pytest.approx(2 * hidden * 2048 * layers)


@pytest.mark.parametrize(("dropout", "each"), [(False, 2), (True, 5)])
@pytest.mark.parametrize("name", ["deepseek-v2-lite", "llama-3.1-8b"])
def test_bytes_of_a_pair_of_scores(name: str, dropout: bool, each: int) -> None:
    """Unfused attention of Megatron keeps 16-bit probabilities, latent or not; with dropout the mask and the dropped ones."""
    shorter, longer = (
        memory(name, seq=seq, dp=8, global_batch=8, attention="eager", attention_dropout=dropout)
        for seq in (1024, 2048)
    )
    mixer = load_model(name).layers[-1].mixer
    pairs = len(load_model(name).layers) * mixer.heads * (2048**2 - 2 * 1024**2)  # type: ignore[union-attr]
    # What grows with the square alone: twice the shorter taken away.
    square = line_bytes(longer, "activations") - 2 * line_bytes(shorter, "activations")
    assert square == pytest.approx(each * pairs, rel=0.02)


def test_exported_commands_train_without_it() -> None:
    model, load = load_model("llama-3.1-8b"), TrainingWorkload(seq=4096, global_batch=64)
    made = single_training_plan(model, find("h100-sxm"), load, TrainingConstraints(tp=2), gpus=8)
    words = shlex.join(write(model=model, plan=made, workload=load))
    assert "--hidden-dropout 0.0" in words
    assert "--attention-dropout 0.0" in words
    assert "dropout" not in shlex.join(
        write(model=model, plan=replace(made, hidden_dropout=True, attention_dropout=True), workload=load)
    )
