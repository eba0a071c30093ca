"""torchtitan's command line and its older job files: read into plans, the command line written back."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from trilemma.cli.main import main
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
    assert {warning.code for warning in found.warnings} == {"old-torchtitan", "unknown-flag"}
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


JOB = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\n{}\nseq_len = 8192\n[activation_checkpoint]\nmode = "selective"\n'


def checked(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["check", "--gpu", "h100-sxm:8", "--json", "--", *shlex.split(words)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_documented_launcher_is_one_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """pytorch/torchtitan run_train.sh: NGPU processes of one node, 8 where it is not set."""
    (tmp_path / "job.toml").write_text(JOB.format("local_batch_size = 1"))
    for start in (
        f"NGPU=8 CONFIG_FILE={tmp_path}/job.toml ./run_train.sh",
        f"CONFIG_FILE={tmp_path}/job.toml ./run_train.sh",
    ):
        found = checked(start, capsys)
        assert found["inputs"]["cluster"]["nodes"] == 1
        assert found["speed"]["step_s"]["value"] == pytest.approx(1.268, rel=0.03)
    assert read(shlex.split("NGPU=4 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh")).gpus_per_node == 4


def test_the_script_alone_asks_for_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--gpu", "h100-sxm:8", "--", "./run_train.sh"]) == 2
    assert "CONFIG=llama3_8b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("batch_size = 1\ncompile = true", "2025-04"),
        ("batch_size = 1\ntensor_parallel_degree = 2", "2025-03"),
        ("local_batch_size = 1\ncompile = true", "2025-07"),
        ("local_batch_size = 1", None),
    ],
)
def test_old_job_files_are_of_their_time(tmp_path: Path, line: str, version: str | None) -> None:
    (tmp_path / "job.toml").write_text(JOB.format(line))
    words = f"torchrun --nproc_per_node 8 torchtitan/train.py --job.config_file {tmp_path}/job.toml"
    assert read(shlex.split(words)).plan.version == version


def test_memory_of_the_time_of_a_job_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """pytorch/torchtitan issue 929 (March 2025): 47.65 GiB reserved, Llama 3 8B, eight H100, compiled."""
    (tmp_path / "job.toml").write_text(JOB.format("batch_size = 1\ncompile = true"))
    found = checked(f"torchrun --nproc_per_node 8 torchtitan/train.py --job.config_file {tmp_path}/job.toml", capsys)
    outside = next(item["bytes"] for item in found["memory"]["items"] if item["name"] == "context")
    assert (found["memory"]["total_bytes"] - outside) / 2**30 == pytest.approx(47.65, rel=0.04)


def test_job_files_that_torchtitan_came_with_need_not_be_here() -> None:
    facts = framework_facts("torchtitan")
    for name in facts["shipped"]:
        found = read(shlex.split(f"NGPU=64 CONFIG_FILE=./torchtitan/models/any/train_configs/{name} ./run_train.sh"))
        assert found.unknown_flags == ()
        assert "assumed-file" in {warning.code for warning in found.warnings}
    old = read(shlex.split("NGPU=8 CONFIG_FILE=./train_configs/llama3_8b.toml ./run_train.sh"))
    assert (old.model, old.plan.version, old.plan.recompute.mode) == ("llama-3.1-8b", "2025-02", "op")
    with pytest.raises(InputError, match=r"mine\.toml"):
        read(shlex.split("NGPU=8 CONFIG_FILE=./train_configs/mine.toml ./run_train.sh"))
