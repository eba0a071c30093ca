"""torchtitan's command line and its older job files: read into plans, the command line written back."""

import dataclasses
import shlex
from pathlib import Path

import pytest

from trilemma.engines.torchtitan.read import read
from trilemma.engines.torchtitan.write import write
from trilemma.engines.training import framework_facts
from trilemma.errors import InputError
from trilemma.models.resolve import load_model
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Recompute, TrainingPlan
from trilemma.workloads import TrainingWorkload

LAUNCH = "torchrun --nproc_per_node 8 --nnodes 4 -m torchtitan.train"


def test_a_named_configuration_with_flags_over_it() -> None:
    found = read(shlex.split(f"{LAUNCH} --module llama3 --config llama3_70b --training.local_batch_size 16"))
    plan = found.plan
    assert (plan.layout.tp, plan.layout.dp, plan.zero, plan.micro_batch) == (8, 4, 3, 16)
    assert plan.recompute == Recompute(mode="full")
    assert (plan.loss, plan.loss_chunks, plan.recipe.name, plan.sp) == ("chunked", 8, "fsdp", True)
    assert (found.model, found.workload.seq, found.workload.global_batch) == ("llama-3.1-70b", 8192, 64)


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ("activation-checkpoint:none", "recompute", Recompute()),
        ("activation-checkpoint:full", "recompute", Recompute(mode="full")),
        ("--compile.enable", "compiled", True),
        ("--training.dtype bfloat16", "recipe", recipe("pure-bf16")),
        ("--parallelism.no-enable-sequence-parallel", "sp", False),
        ("--parallelism.fsdp_reshard_after_forward never", "reshard", False),
        ("--parallelism.data_parallel_replicate_degree 2", "shard_group", 2),
        ("--optimizer.implementation fused_opt_states_bf16", "optimizer", optimizer("adamw-bf16-moments")),
        ("--loss.num-chunks 4", "loss_chunks", 4),
    ],
)
def test_flags_change_the_plan(more: str, name: str, value: object) -> None:
    assert getattr(read(shlex.split(f"{LAUNCH} --module llama3 --config llama3_70b {more}")).plan, name) == value


def test_a_pipeline_cuts_the_local_batch() -> None:
    more = "--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule Interleaved1F1B"
    found = read(shlex.split(f"{LAUNCH} --module llama3 --config llama3_70b --training.local_batch_size 8 {more}"))
    assert (found.plan.layout.vpp, found.plan.micro_batch, found.plan.schedule) == (2, 1, "interleaved")
    assert found.plan.reshard is False
    assert found.workload.global_batch == 8


def test_run_train_takes_its_environment() -> None:
    found = read(shlex.split("NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.seq_len 4096"))
    assert (found.gpus, found.model, found.workload.seq, found.plan.recompute.mode) == (8, "llama-3.1-8b", 4096, "op")


def test_job_file_of_an_older_version(tmp_path: Path) -> None:
    file = tmp_path / "llama3_8b.toml"
    file.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n'
        "[training]\nlocal_batch_size = 2\nseq_len = 8192\n"
        '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "op"\n'
        "[compile]\nenable = true\n[experimental]\nnobody_knows = 1\n"
    )
    found = read(shlex.split(f"torchrun --nproc_per_node 8 train.py --job.config_file {file}"))
    assert (found.model, found.plan.micro_batch, found.plan.compiled) == ("llama-3.1-8b", 2, True)
    assert (found.plan.recipe.matmul, found.plan.recompute.mode) == ("fp8_tensor", "op")
    assert {caution.code for caution in found.cautions} == {"old-torchtitan", "unknown-flag"}
    assert found.unknown_flags == ("experimental.nobody_knows",)


def test_every_named_configuration_is_a_model_of_the_catalogue() -> None:
    facts = framework_facts("torchtitan")
    for row in [*facts["config"].values()]:
        assert load_model(row["model"]).layers
        assert set(row) <= {
            "model", "seq_len", "local_batch_size", "activation_checkpoint", "loss_chunks", "tensor_parallel_degree",
            "expert_parallel_degree", "data_parallel_shard_degree", "pipeline_parallel_schedule", "compile", "matmul",
            "optimizer",
        }  # fmt: skip
    for name in facts["flavors"].values():
        assert load_model(name).layers


PLANS = [
    ("llama-3.1-70b", TrainingPlan(layout=Layout(tp=8, dp=4), recompute=Recompute(mode="full"))),
    ("llama-3.1-8b", TrainingPlan(layout=Layout(dp=32), shard_group=8, recompute=Recompute(mode="op"), compiled=True)),
    ("llama-3.1-8b", TrainingPlan(layout=Layout(dp=8, cp=4), recipe=recipe("pure-bf16"))),
    (
        "llama-3.1-405b",
        TrainingPlan(
            layout=Layout(tp=8, pp=2, dp=2, vpp=2), schedule="interleaved", recipe=recipe("fsdp-fp8"), reshard=False
        ),
    ),
    ("qwen3-30b-a3b", TrainingPlan(layout=Layout(dp=32, ep=8), expert_tp=1, recompute=Recompute(mode="full"))),
]


@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_written_command_reads_back_the_same_plan(name: str, plan: TrainingPlan) -> None:
    base = plan.recipe if plan.recipe.source else recipe("fsdp")
    if base.matmul == "fp8_tensor":
        base = dataclasses.replace(base, name="fsdp-fp8_row", matmul="fp8_row", source=recipe("fsdp-fp8").source)
    plan = dataclasses.replace(
        plan, implementation="torchtitan", zero=3, recipe=base, optimizer=optimizer("adamw-like-weights"), attention="sdpa",
        loss="chunked", sp=plan.layout.tp > 1, overlap_tensor=False,
    )  # fmt: skip
    model, workload = load_model(name), TrainingWorkload(seq=8192, global_batch=64)
    words = write(model=model, plan=plan, workload=workload)
    found = read([*LAUNCH.split(), *words])
    assert found.unknown_flags == ()
    assert found.plan == plan
    assert found.workload == workload


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--parallelism.tensor_parallel_degree 3", "does not divide the 32 GPUs"),
        ("--parallelism.data_parallel_shard_degree 8", "multiply to 64, not to the 32 GPUs"),
        ("--training.global_batch_size 7", "is not a multiple of micro-batch"),
        ("--training.local_batch_size nan", "training.local_batch_size 'nan'"),
        ("--parallelism.expert_parallel_degree 64", "does not divide the 32 ranks"),
        (
            "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule Best",
            "'Best' is not read",
        ),
        ("activation-checkpoint:most", "'most' is not known"),
    ],
)
def test_bad_values_are_named(more: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(shlex.split(f"{LAUNCH} --module llama3 --config llama3_70b {more}"))


def test_unknown_configurations_are_named() -> None:
    with pytest.raises(InputError, match="llama3/llama3_80b"):
        read(shlex.split(f"{LAUNCH} --module llama3 --config llama3_80b"))
    with pytest.raises(InputError, match="has no configuration of"):
        write(
            model=load_model("gpt-3-175b"),
            plan=TrainingPlan(zero=3),
            workload=TrainingWorkload(seq=2048, global_batch=8),
        )
