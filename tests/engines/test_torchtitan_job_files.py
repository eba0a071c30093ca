"""Keys of torchtitan's job files (0.1 and 0.2: config/job_config.py) and flags (0.3), one at a time; what is written of plans.

A looped schedule runs two chunks of each stage; layers per stage count embedding and head as a layer each
(torchtitan/distributed/pipeline_parallel.py); FSDP reshards after forward unless a pipeline runs (``default``).
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trilemma.engines.torchtitan.write import write
from trilemma.engines.training import TrainingCommand, read_training
from trilemma.errors import InputError
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, Offload, Recompute, TrainingPlan, optimizer, recipe
from trilemma.workloads import TrainingWorkload

START = "torchrun --nproc_per_node {} --nnodes 1 -m torchtitan.train"
LOAD = TrainingWorkload(seq=8192, global_batch=64)


def from_file(folder: Path, lines: str, *, gpus: int = 8, more: str = "") -> TrainingCommand:
    path = folder / "job.toml"
    path.write_text(f'[model]\nname = "llama3"\nflavor = "8B"\n{lines}\n')
    return read_training("torchtitan", f"{START.format(gpus)} --job.config_file {path} {more}".split())


def from_flags(more: str, *, gpus: int = 8) -> TrainingCommand:
    return read_training("torchtitan", f"{START.format(gpus)} --module llama3 --config llama3_8b {more}".split())


def at(value: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        value = getattr(value, name)
    return value


#: Lines of a job file → what of the command they set.
SET: list[tuple[str, dict[str, Any]]] = [
    ("", {"plan.zero": 3, "plan.layout.dp": 8, "plan.recompute.mode": "op", "plan.recipe.name": "fsdp",
     "plan.reshard": True,
          "plan.optimizer.name": "adamw-like-weights", "plan.attention": "sdpa", "workload.tokens": None,
          "plan.shard_group": None, "plan.loss": "full", "plan.overlap_tensor": False,
           "plan.optimizer_in_backward": False}),
    ('[optimizer]\nname = "Adam"', {"plan.optimizer.name": "adamw-like-weights"}),
    ('[optimizer]\nname = "SGD"', {"plan.optimizer.name": "sgd"}),
    ('[optimizer]\nname = "Muon"', {"plan.optimizer.name": "muon"}),
    ('[optimizer]\nimplementation = "fused_opt_states_bf16"', {"plan.optimizer.name": "adamw-bf16-moments"}),
    ("[optimizer]\nearly_step_in_backward = true", {"plan.optimizer_in_backward": True}),
    ('[activation_checkpoint]\nmode = "none"', {"plan.recompute": Recompute()}),
    ('[activation_checkpoint]\nmode = "full"', {"plan.recompute": Recompute(mode="full")}),
    ('[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "op"',
     {"plan.recompute": Recompute(mode="op")}),
    ('[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "1"',
     {"plan.recompute": Recompute(mode="full")}),
    ('[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "0"',
     {"plan.recompute": Recompute(mode="op")}),
    ('[activation_checkpoint]\nmode = "full"\nselective_ac_option = "2"', {"plan.recompute": Recompute(mode="full")}),
    ('[training]\nmixed_precision_param = "float32"', {"plan.recipe.name": "fp32"}),
    ('[training]\nmixed_precision_param = "bfloat16"', {"plan.recipe.name": "fsdp"}),
    ("[training]\nseq_len = 4096\nbatch_size = 2", {"workload.seq": 4096, "workload.global_batch": 16,
     "plan.micro_batch": 2}),
    ("[training]\nlocal_batch_size = 2\nglobal_batch_size = 32", {"workload.global_batch": 32, "plan.micro_batch": 2}),
    ("[training]\nlocal_batch_size = 2\nglobal_batch_size = -1", {"workload.global_batch": 16}),
    ("[training]\nlocal_batch_size = 1\nseq_len = 1000\nsteps = 10", {"workload.tokens": 8 * 1000 * 10}),
    ("[training]\nsteps = 0", {"workload.tokens": None}),
    ("[training]\ncompile = true", {"plan.compiled": True}),
    ('[compile]\nenable = true\ncomponents = ["loss"]', {"plan.compiled": False}),
    ("[training]\nenable_cpu_offload = true", {"plan.offload": Offload(optimizer=1.0, weights=1.0)}),
    ("[training]\nenable_cpu_offload = false", {"plan.offload": Offload()}),
    ("[parallelism]\nenable_async_tensor_parallel = true", {"plan.overlap_tensor": True}),
    ('[float8]\nenable_float8_linear = true', {"plan.recipe.matmul": "fp8_tensor"}),
    ('[float8]\nenable_float8_linear = true\nrecipe_name = "rowwise"', {"plan.recipe.matmul": "fp8_row"}),
    ('[float8]\nenable_float8_linear = false\nrecipe_name = "rowwise"', {"plan.recipe.matmul": "same"}),
    ("[parallelism]\ntensor_parallel_degree = 4", {"plan.layout": Layout(tp=4, dp=2), "plan.sp": True}),
    ("[parallelism]\ntensor_parallel_degree = 4\nenable_sequence_parallel = false", {"plan.sp": False}),
    ("[parallelism]\ncontext_parallel_degree = 4", {"plan.layout": Layout(cp=4, dp=2), "plan.zero": 3,
     "plan.sp": False}),
    ("[parallelism]\ndata_parallel_replicate_degree = 2",
     {"plan.layout": Layout(dp=8), "plan.shard_group": 4, "plan.zero": 3}),
    ("[parallelism]\ndata_parallel_replicate_degree = 2\ncontext_parallel_degree = 2",
     {"plan.layout": Layout(cp=2, dp=4), "plan.shard_group": 4}),
    ("[parallelism]\ndata_parallel_replicate_degree = 8", {"plan.zero": 0, "plan.shard_group": None}),
    ("[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4", {"plan.shard_group": 4}),
    ("[parallelism]\ndata_parallel_shard_degree = 8", {"plan.layout": Layout(dp=8), "plan.zero": 3,
     "plan.shard_group": None}),
    ("[parallelism]\ndata_parallel_shard_degree = 0", {"plan.layout": Layout(dp=8)}),
    ("[parallelism]\ntensor_parallel_degree = 8\n", {"plan.zero": 0, "plan.layout": Layout(tp=8)}),
    ('[parallelism]\nfsdp_reshard_after_forward = "never"', {"plan.reshard": False}),
    ('[parallelism]\nfsdp_reshard_after_forward = "always"\npipeline_parallel_degree = 2', {"plan.reshard": True}),
    ("[parallelism]\npipeline_parallel_degree = 2\n[training]\nlocal_batch_size = 4",
     {"plan.layout": Layout(pp=2, dp=4), "plan.schedule": "1f1b", "plan.reshard": False, "plan.micro_batch": 1,
      "workload.global_batch": 16}),
    ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 2\n[training]\nlocal_batch_size = 4",
     {"plan.micro_batch": 2}),
    ('[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "interleaved1f1b"',
     {"plan.layout": Layout(pp=2, dp=4, vpp=2), "plan.schedule": "interleaved"}),
    ('[parallelism]\npipeline_parallel_schedule = "Interleaved1F1B"', {"plan.layout.vpp": 1, "plan.schedule": "1f1b"}),
    # 32 layers with both ends are 34: four layers a stage are nine stages; without the ends eight.
    ('[parallelism]\npipeline_parallel_degree = 3\npipeline_parallel_schedule = "Interleaved1F1B"\n'
     "pipeline_parallel_layers_per_stage = 4", {"plan.layout.vpp": 3}),
    ('[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"\n'
     "pipeline_parallel_layers_per_stage = 4\npipeline_parallel_first_stage_less_layers = 0\n"
     "pipeline_parallel_last_stage_less_layers = 0", {"plan.layout.vpp": 4}),
    ("[parallelism]\nexpert_parallel_degree = 8", {"plan.layout.ep": 8, "plan.expert_tp": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "expected"), SET)
def test_a_line_of_a_job_file(lines: str, expected: dict[str, Any], tmp_path: Path) -> None:
    tables = tomllib.loads(lines)
    gpus = 6 if tables.get("parallelism", {}).get("pipeline_parallel_degree") == 3 else 8
    found = from_file(tmp_path, lines, gpus=gpus)
    assert {name: at(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('[optimizer]\nname = "Lion"', "optimizer lion is not known here; counted as AdamW"),
        ('[activation_checkpoint]\nmode = "memory_budget"', "by memory budget is counted as selective"),
        (
            '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "2"',
            "every 2th layer is counted as op-level",
        ),
    ],
)
def test_what_is_counted_as_something_else_is_said(lines: str, says: str, tmp_path: Path) -> None:
    found = from_file(tmp_path, lines)
    assert sum(says in one.message for one in found.warnings) == 1
    assert not any(says in one.message for one in from_file(tmp_path, "").warnings)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('[model]\nname = "llama3"', "is not readable TOML"),
        ('[activation_checkpoint]\nmode = "x"', "activation checkpointing 'x' is not known"),
        ('[float8]\nenable_float8_linear = true\nrecipe_name = "int3"', "recipe 'int3' of low precision is not known"),
        ("[parallelism]\ndata_parallel_shard_degree = 4", "multiply to 4, not to the 8 GPUs"),
        ("[parallelism]\nexpert_parallel_degree = 3", "expert_parallel_degree 3 does not divide the 8 ranks"),
        ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 12", "12 makes 3 stages"),
        ('[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "z"', "schedule 'z' is not read"),
        (
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 3\n[training]\n"
            "local_batch_size = 4",
            "microbatch_size 3 does not divide --training.local_batch_size 4",
        ),
        ("[a.b.c.d.e.f.g.h.i.j]\nx = 1", "nests deeper than 8 sections"),
    ],
)
def test_what_a_job_file_cannot_mean(lines: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        from_file(tmp_path, lines)


def test_eight_sections_are_read(tmp_path: Path) -> None:
    assert from_file(tmp_path, "[a.b.c.d.e.f.g.h]\nx = 1").unknown_flags == ("a.b.c.d.e.f.g.h.x",)


def test_a_model_that_torchtitan_has_not(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[model]\nname = "llama3"\nflavor = "9B"\n')
    with pytest.raises(InputError, match="torchtitan model 'llama3/9B'"):
        read_training("torchtitan", f"{START.format(8)} --job.config_file {path}".split())


@pytest.mark.parametrize("words", ["", "--module llama3", "--config llama3_8b"])
def test_a_configuration_needs_both_words(words: str) -> None:
    with pytest.raises(InputError, match="torchtitan needs --module and --config"):
        read_training("torchtitan", f"{START.format(8)} {words}".split())


def test_gpus_have_to_be_said() -> None:
    words = [
        "torchrun",
        "--nproc_per_node",
        "gpu",
        "-m",
        "torchtitan.train",
        "--module",
        "llama3",
        "--config",
        "llama3_8b",
    ]
    with pytest.raises(InputError, match="does not say how many GPUs"):
        read_training("torchtitan", words)
    assert read_training("torchtitan", words, gpus=4).gpus == 4


def told(change: dict[str, Any], model: str = "llama-3.1-8b", load: TrainingWorkload = LOAD) -> list[str]:
    plain: dict[str, Any] = {
        "layout": Layout(dp=8), "recipe": recipe("fsdp"), "implementation": "torchtitan", "zero": 3,
        "recompute": Recompute(mode="op"), "optimizer": optimizer("adamw"),
    }  # fmt: skip
    return write(model=load_model(model), plan=TrainingPlan(**{**plain, **change}), workload=load)


#: Change to a plan → words that it adds to the plain command, and words that it takes away.
ADDED: list[tuple[dict[str, Any], str, str]] = [
    ({"recompute": Recompute()}, "activation-checkpoint:none", "activation-checkpoint:selective"),
    ({"recompute": Recompute(mode="full")}, "activation-checkpoint:full", "activation-checkpoint:selective"),
    ({"reshard": False}, "--parallelism.fsdp_reshard_after_forward never", ""),
    ({"layout": Layout(tp=2, dp=4), "sp": False}, "--parallelism.no-enable-sequence-parallel", ""),
    ({"offload": Offload(optimizer=1.0, weights=1.0)}, "--training.enable-cpu-offload", ""),
    ({"compiled": True}, "--compile.enable --compile.components model,loss", ""),
    ({"compiled": True, "overlap_tensor": True}, "--compile.enable-async-tensor-parallel", ""),
    ({"overlap_tensor": True}, "", "--compile.enable-async-tensor-parallel"),
    ({"loss": "chunked", "loss_chunks": 8}, "--loss.num-chunks 8", ""),
    ({"recipe": recipe("fp32")}, "--training.mixed_precision_param float32", ""),
    ({"recipe": recipe("pure-bf16")}, "--training.dtype bfloat16", ""),
    ({"optimizer": optimizer("adamw-bf16-moments")}, "--optimizer.implementation fused_opt_states_bf16", ""),
    ({"shard_group": 4}, "--parallelism.data_parallel_replicate_degree 2 --parallelism.data_parallel_shard_degree 4",
     ""),
    ({"zero": 0}, "--parallelism.data_parallel_replicate_degree 8 --parallelism.data_parallel_shard_degree 1", ""),
    ({"layout": Layout(cp=2, dp=4)},
     "--parallelism.data_parallel_replicate_degree 1 --parallelism.data_parallel_shard_degree 4", ""),
    ({"layout": Layout(cp=2, dp=4), "shard_group": 4},
     "--parallelism.data_parallel_replicate_degree 2 --parallelism.data_parallel_shard_degree 2", ""),
    ({"micro_batch": 2}, "--training.local_batch_size 2", ""),
    # With a pipeline the local batch is all that a replica takes in a step, and is cut into micro-batches.
    ({"layout": Layout(pp=2, dp=4), "reshard": False, "micro_batch": 2},
     "--training.local_batch_size 16 --training.global_batch_size 64", "--parallelism.fsdp_reshard_after_forward"),
    ({"layout": Layout(pp=2, dp=4), "micro_batch": 2}, "--parallelism.fsdp_reshard_after_forward always", ""),
    ({"layout": Layout(pp=2, dp=4)},
     "--training.disable-cuda-graphs --parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule 1F1B"
     " --parallelism.pipeline_parallel_microbatch_size 1", "layers_per_stage"),
    ({"layout": Layout(pp=2, dp=4, vpp=2), "schedule": "interleaved"},
     "--parallelism.pipeline_parallel_schedule Interleaved1F1B",
     "layers_per_stage"),
    # Sixteen pieces of 34 layers, the ends counted: three are twelve, two are seventeen; without the ends two are sixteen.
    ({"layout": Layout(pp=4, dp=2, vpp=4), "schedule": "interleaved"},
     "--parallelism.pipeline_parallel_layers_per_stage 2 --parallelism.pipeline_parallel_first_stage_less_layers 0"
     " --parallelism.pipeline_parallel_last_stage_less_layers 0", ""),
    # Twelve pieces of 34 are three layers each.
    ({"layout": Layout(pp=3, dp=2, vpp=4), "schedule": "interleaved"},
     "--parallelism.pipeline_parallel_layers_per_stage 3",
     "stage_less_layers"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words", "without"), ADDED)
def test_a_change_to_a_plan_is_written(change: dict[str, Any], words: str, without: str) -> None:
    found = " ".join(told(change))
    assert words in found
    assert not without or without not in found
    if words:
        assert words not in " ".join(told({}))


@pytest.mark.parametrize(
    ("change", "model", "says"),
    [
        ({"zero": 2}, "llama-3.1-8b", "not --zero 2; use --zero 3"),
        ({"recompute": Recompute(mode="full", layers=3)}, "llama-3.1-8b", "by operator or whole layers"),
        ({"recompute": Recompute(mode="selective")}, "llama-3.1-8b", "by operator or whole layers"),
        ({"layout": Layout(cp=4, dp=2), "shard_group": 2}, "llama-3.1-8b", "a group of 2 is no multiple of cp 4"),
        ({"optimizer": optimizer("lion")}, "llama-3.1-8b", "optimizer lion is set in Python"),
        ({"recipe": recipe("amp")}, "gemma-3-12b", "torchtitan has no configuration of"),
        ({"recipe": recipe("bf16")}, "llama-3.1-8b", "keeps FP32 or BF16 weights alone, not the recipe bf16"),
        ({"recipe": replace(recipe("fsdp"), matmul="nvfp4")}, "llama-3.1-8b", "no nvfp4 matrix products"),
        ({"layout": Layout(pp=4, dp=2), "schedule": "zb-h2"}, "llama-3.1-8b", "no schedule zb-h2 with 1 chunks"),
        ({"layout": Layout(pp=7, dp=1, vpp=4), "schedule": "interleaved"}, "llama-3.1-8b",
         "cannot cut 32 layers into 28 stages"),
    ],
)  # fmt: skip
def test_what_torchtitan_cannot_say(change: dict[str, Any], model: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        told(change, model)


def test_adapters_are_not_written() -> None:
    with pytest.raises(InputError, match="writes no lora training"):
        told({}, load=replace(LOAD, method="lora", rank=8))


def test_flags_over_a_configuration() -> None:
    found = from_flags("--parallelism.no_enable_sequence_parallel --parallelism.tensor_parallel_degree 2")
    assert (found.plan.sp, found.plan.layout) == (False, Layout(tp=2, dp=4))
    assert from_flags("--parallelism.tensor_parallel_degree 2").plan.sp
    assert from_flags("--no.such_key 1").unknown_flags == ("--no.such_key",)
    assert from_flags("activation-checkpoint:full").plan.recompute == Recompute(mode="full")
    assert from_flags("--loss.num-chunks 1").plan.loss == "full"
    assert (from_flags("--loss.num-chunks 2").plan.loss, from_flags("--loss.num-chunks 2").plan.loss_chunks) == (
        "chunked",
        2,
    )
