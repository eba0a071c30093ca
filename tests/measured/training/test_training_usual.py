"""What training tables leave out and frameworks decide."""

from __future__ import annotations

import pytest

from trilemma.measured.tables import Row
from trilemma.measured.training.question import MeasuredTraining, read_training_question
from trilemma.measured.training.room import as_it_ran, states_chunks, with_room
from trilemma.measured.training.usual import (
    applies_in_backward,
    fine_tuning,
    reached,
    usual_loss,
    usual_micro_batch,
    usual_optimizer,
)
from trilemma.models.resolve import load_model
from trilemma.plans import recipe

LLAMA = load_model("llama-3.2-3b")


def row(**cells: str) -> Row:
    return Row(id="one", line=1, cells=cells)


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ({"model": "Llama 3"}, ("full", 0, ())),
        ({"model": "Llama 3 [QLoRA r32]"}, ("qlora", 32, ())),
        ({"model": "Llama 3 [LoRA]"}, ("lora", 16, ())),
        ({"model": "x [vera]", "framework": "transformers 5 + PEFT", "notes": "trainable params 9,175,040"},
         ("lora", 32, ("attention.q", "attention.v"))),
        ({"model": "x [full]", "framework": "transformers 5 + PEFT", "notes": "trainable params 3212749824"},
         ("full", 0, ())),
    ],
)  # fmt: skip
def test_method_rank_and_targets(cells: dict[str, str], wanted: tuple[str, int, tuple[str, ...]]) -> None:
    assumed: list[str] = []
    assert fine_tuning(row(**cells), LLAMA, assumed) == wanted
    assert bool(assumed) == (wanted[0] != "full" and "r32" not in cells["model"])


def test_optimizer_state_follows_the_framework() -> None:
    bridge = "megatron-bridge"
    assert usual_optimizer(row(optimizer="bnb 8-bit AdamW"), recipe("bf16"), bridge, LLAMA).name == "adamw-8bit"
    assert usual_optimizer(row(optimizer="torchao 4-bit AdamW"), recipe("bf16"), bridge, LLAMA).name == "adamw-4bit"
    assert usual_optimizer(row(), recipe("bf16"), bridge, LLAMA).moments == ("fp32", "fp32")
    moonlight = load_model("moonlight-16b-a3b")
    assert usual_optimizer(row(), recipe("bf16"), bridge, moonlight).moments == ("bf16", "bf16")
    assert usual_optimizer(row(), recipe("pure-bf16"), "torchtune", LLAMA).moments == ("weights", "weights")


def test_losses_and_micro_batches() -> None:
    assert usual_loss(row(), "torchtune") == "chunked"
    assert usual_loss(row(), "torchtitan") == usual_loss(row(), "megatron") == "full"
    assert usual_micro_batch(row(notes="local batch 32 split"), "torchtitan", 8) == 4
    assert usual_micro_batch(row(notes="local batch 32 split"), "megatron", 8) is None
    assert usual_micro_batch(row(), "torchtitan", 8) is None


def test_a_run_that_did_not_fit_was_recomputed() -> None:
    cells = {
        "model": "Llama 3.1 70B [LoRA r16]", "gpu": "A100-80GB", "gpus": "8", "framework": "torchtune", "precision": "BF16",
        "seq_len": "8192", "micro_batch": "2", "tp": "1", "pp": "1", "fsdp_or_zero": "FSDP2",
        "measured_metric": "peak_memory_gib", "value": "50",
    }  # fmt: skip
    question = read_training_question(row(**cells))
    assert with_room(row(**cells), question).plan.recompute.mode == "full"
    stated = {**cells, "recompute": "none"}
    assert with_room(row(**stated), question) is question
    short = {**cells, "seq_len": "256"}
    assert with_room(row(**short), read_training_question(row(**short))).plan.recompute.mode == "none"


#: NVIDIA/Megatron-LM README.md: two rows of the weak scaling on H100, which states neither micro-batches nor chunks.
SCALED = {
    "gpu": "H100", "framework": "Megatron-LM 2024-07", "precision": "BF16", "seq_len": "4096", "dp": "48",
    "measured_metric": "tflops_per_gpu", "value": "450", "source_title": "README",
}  # fmt: skip
SEVEN = {**SCALED, "model": "GPT", "layers": "32", "hidden": "4096", "ffn": "16384", "heads": "32", "vocab": "131072"}
WIDE = {**SCALED, "model": "GPT", "layers": "96", "hidden": "12288", "ffn": "49152", "heads": "96", "vocab": "131072"}


def ran(chunked: tuple[str, ...] = (), **cells: str) -> MeasuredTraining:
    return as_it_ran(row(**cells), read_training_question(row(**cells)), chunked)


def test_batches_that_nobody_states_are_not_cut_where_they_fit() -> None:
    cells = {**SEVEN, "seq_len": "2048", "gpus": "96", "global_batch": "192", "tp": "2", "pp": "1"}
    whole = ran(**cells)
    assert whole.plan.micro_batch == 4
    assert [note for note in whole.assumed if "micro-batch" in note] == [
        "micro-batch 4: not stated; the largest that divides a rank's 4 and fits"
    ]
    assert ran(**{**cells, "micro_batch": "1"}).plan.micro_batch == 1
    assert ran(**{**cells, "seq_len": "4096"}).plan.micro_batch == 2
    assert ran(**{**cells, "global_batch": ""}).plan.micro_batch == 1


def test_pipelines_of_tables_without_chunks_have_chunks_of_two_layers() -> None:
    cells = {**WIDE, "gpus": "2304", "global_batch": "1152", "tp": "8", "pp": "6"}
    found = ran(**cells)
    assert (found.plan.layout.vpp, found.plan.schedule, found.plan.micro_batch) == (8, "interleaved", 1)
    assert "8 chunks a stage: not stated" in found.assumed
    assert ran(("README",), **cells).plan.layout.vpp == 1
    assert ran(**{**cells, "notes": "1F1B schedule"}).plan.layout.vpp == 1
    assert ran(**{**cells, "global_batch": "1200"}).plan.layout.vpp == 1
    assert ran(**{**cells, "framework": "DeepSpeed 0.15"}).plan.layout.vpp == 1
    assert states_chunks([row(vpp="4", source_title="a"), row(source_title="b")]) == {"a"}


def test_a_local_batch_in_the_notes_is_the_batch_of_a_replica() -> None:
    cells = {
        "model": "Llama 3.1 405B", "gpu": "H100", "gpus": "512", "framework": "torchtitan", "precision": "BF16",
        "seq_len": "8192", "tp": "8", "pp": "8", "dp": "8", "fsdp_or_zero": "FSDP2",
    }  # fmt: skip
    stated = read_training_question(row(notes="1F1B; local batch 8", **cells))
    assert (stated.workload.global_batch, stated.plan.micro_batch) == (64, 1)
    assert not any("global batch" in note for note in stated.assumed)
    assert read_training_question(row(**cells)).workload.global_batch == 256


def test_steps_of_a_ladder_hold_what_came_before() -> None:
    ladder = {"notes": "steps cumulative", "model": "Llama 3.2 3B [full]"}
    packed = row(config_id="x + Packed", **ladder)
    checkpointed = row(config_id="x + AC", recompute="full", **ladder)
    fused = row(config_id="x + Optimizer in backward", recompute="full", **ladder)
    assert [usual_loss(one, "torchtune") for one in (packed, checkpointed, fused)] == ["full", "chunked", "chunked"]
    assert [applies_in_backward(one) for one in (packed, checkpointed, fused)] == [False, False, True]
    assert [reached(one, "compile") for one in (packed, checkpointed)] == [False, True]
    assert not applies_in_backward(row(notes="optimizer step", config_id="y"))


SUBMITTED = {
    "model": "Llama 3.1 8B", "gpu": "NVIDIA Blackwell GPU (B200-SXM-180GB)", "gpus": "16", "seq_len": "8192",
    "micro_batch": "2", "global_batch": "32", "tp": "1", "pp": "1", "framework": "PyTorch NVIDIA Release 25.09",
    "version": "MLPerf Training v5.1", "measured_metric": "iteration_s", "value": "0.6",
}  # fmt: skip


def test_submissions_run_what_their_shared_configuration_sets() -> None:
    """config_common.sh of mlcommons/training_results_v5.1: FP8=True, FP8_RECIPE=tensorwise, by NeMo."""
    question = read_training_question(row(**SUBMITTED))
    assert question.plan.recipe.matmul == "fp8_tensor"
    assert (question.framework.name, question.era) == ("megatron-bridge", "25.09")
    assert sum("as these submissions run" in note for note in question.assumed) == 2
    stated = read_training_question(row(**SUBMITTED | {"precision": "NVFP4", "framework": "torchtitan"}))
    assert (stated.plan.recipe.matmul, stated.framework.name) == ("nvfp4", "torchtitan")
    elsewhere = read_training_question(row(**SUBMITTED | {"version": "2.9"}))
    assert elsewhere.plan.recipe.matmul == "same"


def test_a_machine_whose_products_were_measured_is_as_fast_as_they_are() -> None:
    """MooreThreads/SimuMax configs/system/b200_bf16_ceperm.json: large products at 0.45 to 0.49 of a B200's 2,250 TFLOP/s."""
    plain, slow = (read_training_question(row(**SUBMITTED | more)) for more in ({}, {"matmul_fraction_bf16": "0.475"}))
    whole, part = (one.cluster.accelerator.peak_flops["bf16"].value for one in (plain, slow))
    assert part == pytest.approx(whole * 0.475 / 0.78)  # 0.78: stas00/ml-engineering, 1745 of 2250
    shares = SUBMITTED | {"matmul_fraction_bf16": "0.475", "measured_metric": "mfu", "value": "0.3"}
    assert read_training_question(row(**shares)).cluster.accelerator.peak_flops["bf16"].value == whole
