"""Rows are read with what their published recipe sets: graphs, dispatcher, recompute, chunks."""

import pytest

from trilemma.measured.tables import Row
from trilemma.measured.training.published import published_recipe
from trilemma.measured.training.question import read_training_question

#: A line of Megatron-Bridge's performance summary of NeMo 26.06 (docs/performance-summary-archive.md at 067f987d).
ROW = {
    "source_title": "summary", "source_ref": "NVIDIA-NeMo/Megatron-Bridge@docs/performance-summary-archive.md",
    "model": "DeepSeekV3", "gpu": "GB300", "gpus": "256", "gpus_per_node": "4", "framework": "Megatron-Bridge",
    "version": "NeMo 26.06", "precision": "MXFP8", "seq_len": "4096", "micro_batch": "1", "global_batch": "4096",
    "tp": "1", "pp": "2", "vpp": "8", "cp": "1", "ep": "32", "measured_metric": "tokens_per_s_per_gpu", "value": "6304",
}  # fmt: skip


def row(**cells: str) -> Row:
    return Row(id="one", line=1, cells={name: value for name, value in {**ROW, **cells}.items() if value})


def test_a_release_that_replays_whole_steps() -> None:
    """v0.5.0 deepseek_workload_base_configs.py: full_iteration, hybridep, moe_a2a_overlap, cutedsl_fused_grouped_mlp."""
    plan = read_training_question(row()).plan
    assert (plan.dispatcher, plan.cuda_graphs, plan.step_graph, plan.overlap_expert) == ("hybridep", True, True, True)
    assert (plan.fused_experts, plan.attention_fp8, plan.recompute.mode) == (True, True, "none")


def test_the_release_before() -> None:
    """v0.4.0: HybridEP without graphs, mla_up_proj made again."""
    question = read_training_question(row(version="NeMo 26.04", micro_batch="2"))
    plan = question.plan
    assert (plan.dispatcher, plan.cuda_graphs, plan.overlap_expert, plan.fused_experts) == (
        "hybridep",
        False,
        False,
        False,
    )
    assert plan.recompute.parts == ("mla_up_proj",)
    assert any("published recipe" in note for note in question.assumed)


def test_chunks_that_the_table_leaves_out() -> None:
    """v0.4.0 qwen3_workload_base_configs.py: 12 chunks a stage of Qwen3-235B on GB300 in MXFP8."""
    cells = {"model": "Qwen/Qwen3-235B-A22B", "pp": "4", "vpp": "", "micro_batch": "2", "global_batch": "8192"}
    assert published_recipe(row(**cells)).cells["vpp"] == "12"
    assert "vpp" not in published_recipe(row(**{**cells, "pp": "8"})).cells


def test_a_row_counts_before_its_recipe() -> None:
    plan = read_training_question(row(recompute="full", notes="DeepEP; no CUDA graphs")).plan
    assert (plan.dispatcher, plan.cuda_graphs, plan.step_graph, plan.recompute.mode) == ("deepep", False, False, "full")


@pytest.mark.parametrize("cells", [
    {"model": "mixtral-8x7b"}, {"framework": "torchtitan"}, {"gpu": "H200"}, {"version": "NeMo 24.07"}, {"precision": "FP4"},
])  # fmt: skip
def test_what_no_recipe_is_known_of(cells: dict[str, str]) -> None:
    found = published_recipe(row(**cells))
    assert not found.cells
    assert not found.switches


def test_some_layers_made_again() -> None:
    """v0.4.0 llama3_workload_base_configs.py: recompute_num_layers 5 of Llama 3 8B in FP8 on H100."""
    cells = {
        "model": "LLAMA3_8B",
        "gpu": "H100",
        "gpus": "8",
        "precision": "FP8",
        "version": "NeMo 26.04",
        "global_batch": "128",
    }
    plan = read_training_question(row(**cells, pp="1", vpp="", ep="", seq_len="8192")).plan
    assert (plan.recompute.mode, plan.recompute.layers) == ("full", 5)


def test_a_commit_is_dated_by_the_day_of_its_verification() -> None:
    plain = published_recipe(row(version="048058687"))
    dated = published_recipe(row(version="048058687", notes="verified 2026-08-18"))
    assert not plain.switches
    assert dated.switches["step_graph"]


def test_scripts_of_submissions_replay_graphs() -> None:
    """mlcommons/training_results_v5.1 NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo: MCORE_CUDA_GRAPH=1."""
    source = (
        "mlcommons/training_results_v5.1@NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo/config_GB300_18x4.sh"
    )
    found = published_recipe(row(model="Llama 2 70B [LoRA r16]", framework="NVIDIA NeMo", source_ref=source))
    assert found.switches == {"cuda_graphs": True, "step_graph": True}
