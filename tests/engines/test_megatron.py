"""Megatron-LM's flags: read into plans, written back, bad ones named."""

import dataclasses
import shlex

import pytest

from trilemma.commands.option_words import read_options
from trilemma.engines.extract import extract
from trilemma.engines.megatron.architecture import flags_of_model, model_from_flags
from trilemma.engines.megatron.read import read
from trilemma.engines.megatron.write import write
from trilemma.engines.training import framework_facts, read_training
from trilemma.errors import InputError
from trilemma.models.parameters import count
from trilemma.models.resolve import load_model
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Offload, Recompute, TrainingPlan
from trilemma.workloads import TrainingWorkload

GPT3_175B = """
--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048
--vocab-size 51200 --micro-batch-size 1 --global-batch-size 1536 --bf16
--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16
"""
LLAMA3_70B = """
--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention
--num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 8192
--max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 256 --use-distributed-optimizer --bf16
--tensor-model-parallel-size 4 --pipeline-model-parallel-size 8 --sequence-parallel
"""
FACTS = framework_facts("megatron_flags")


def command(flags: str, *, nodes: int = 1, more: str = "") -> list[str]:
    return shlex.split(f"torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py {flags} {more}")


def options(words: list[str]):  # type: ignore[no-untyped-def]
    return read_options(words, switches=set(FACTS["switches"]), values=set(FACTS["values"]), lists=set(FACTS["lists"]))


def test_the_layout_of_a_published_run() -> None:
    found = read(command(LLAMA3_70B, nodes=8, more="--num-virtual-stages-per-pipeline-rank 5 --fp8-format hybrid"))
    plan = found.plan
    assert (plan.layout.tp, plan.layout.pp, plan.layout.vpp, plan.layout.dp) == (4, 8, 5, 2)
    assert (plan.zero, plan.sp, plan.schedule, plan.recipe.name) == (1, True, "interleaved", "fp8")
    assert (found.workload.seq, found.workload.global_batch, found.gpus) == (8192, 256, 64)
    assert found.architecture is not None
    assert count(found.architecture).total == 70_553_706_496


def test_gpt3_is_built_from_flags() -> None:
    found = read(command(GPT3_175B, nodes=16))
    assert found.architecture is not None
    assert count(found.architecture).total == count(load_model("gpt-3-175b")).total
    assert found.plan.zero == 0
    assert found.plan.recipe.gradients == "fp32"


def test_no_precision_flag_means_fp32_and_is_said() -> None:
    found = read(command(LLAMA3_70B.replace("--bf16", ""), nodes=8))
    assert found.plan.recipe.name == "fp32"
    assert any(warning.code == "fp32-training" for warning in found.warnings)


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "recompute", Recompute(mode="full")),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 4",
            "recompute",
            Recompute(mode="full", layers=4),
        ),
        (
            "--recompute-granularity selective --recompute-modules core_attn mlp",
            "recompute",
            Recompute(mode="selective", parts=("core_attn", "mlp")),
        ),
        ("--recompute-activations", "recompute", Recompute(mode="selective")),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", "offload", Offload(optimizer=0.5)),
        ("--cpu-offloading-num-layers 20", "offload", Offload(activations=0.25)),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "zero", 3),
        ("--use-torch-fsdp2", "zero", 3),
        ("--num-distributed-optimizer-instances 2", "shard_group", 1),
        ("--attention-backend unfused", "attention", "eager"),
        ("--cross-entropy-fusion-impl linear", "loss", "fused"),
        ("--cp-comm-type a2a", "cp_exchange", "all_to_all"),
        ("--decoder-first-pipeline-num-layers 8 --decoder-last-pipeline-num-layers 12", "pipeline_layers", (8, *[10] * 6, 12)),
        ("--pipeline-model-parallel-layout Et*9|(t*10|)*6t*11L".replace("(t*10|)*6", "t*10|" * 6), "pipeline_layers",
         (9, *[10] * 6, 11)),
    ],
)  # fmt: skip
def test_options_change_the_plan(more: str, name: str, value: object) -> None:
    assert getattr(read(command(LLAMA3_70B, nodes=8, more=more)).plan, name) == value


@pytest.mark.parametrize(
    ("fp8", "expected"),
    [
        ("--fp8-format hybrid", "fp8"),
        ("--fp8-format hybrid --fp8-param-gather", "fp8-primary"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "fp8-block"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--fp4-format e2m1", "nvfp4"),
        ("--grad-reduce-in-bf16", "bf16-bf16-grads"),
    ],
)
def test_recipes(fp8: str, expected: str) -> None:
    assert read(command(LLAMA3_70B, nodes=8, more=fp8)).plan.recipe == recipe(expected)


def test_unknown_flags_are_named_with_near_ones() -> None:
    found = read(command(LLAMA3_70B, nodes=8, more="--use-distributed-optimiser --tensor-parallel-size 3"))
    assert found.unknown_flags == ("--use-distributed-optimiser", "--tensor-parallel-size")
    assert "did you mean --use-distributed-optimizer" in found.warnings[0].message


@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-8b", "qwen2.5-7b", "mixtral-8x7b", "deepseek-v3", "gpt-22b",
                                  "qwen3-235b-a22b", "moonlight-16b-a3b", "nemotron-4-340b", "starcoder2-7b"])  # fmt: skip
def test_models_survive_flags(name: str) -> None:
    model = load_model(name)
    read_flags = options(flags_of_model(model))
    again, _ = model_from_flags(read_flags)
    assert again is not None
    assert count(again).total == count(model).total
    assert [layer.ffn for layer in again.layers] == [layer.ffn for layer in model.layers]
    assert read_flags.unknown == ()


PLANS = [
    (
        "llama-3.1-70b",
        TrainingPlan(layout=Layout(tp=4, pp=8, vpp=5, dp=2), recipe=recipe("fp8"), schedule="interleaved"),
    ),
    (
        "llama-3.1-405b",
        TrainingPlan(
            layout=Layout(tp=8, pp=8, vpp=8, dp=8, cp=2),
            recipe=recipe("fp8-primary"),
            schedule="interleaved",
            recompute=Recompute(mode="selective", parts=("core_attn",)),
        ),
    ),
    (
        "llama-3.1-405b",
        TrainingPlan(
            layout=Layout(tp=8, pp=9, dp=8), recompute=Recompute(mode="full", layers=3), recipe=recipe("bf16")
        ),
    ),
    (
        "deepseek-v3",
        TrainingPlan(
            layout=Layout(pp=16, dp=128, ep=64),
            recipe=recipe("fp8-block"),
            optimizer=optimizer("adamw-bf16-moments"),
            offload=Offload(optimizer=0.5, masters=0.5),
            expert_tp=1,
            sp=False,
        ),
    ),
    ("mixtral-8x7b", TrainingPlan(layout=Layout(tp=2, dp=16, ep=8), recipe=recipe("bf16"), zero=3, expert_tp=1)),
    ("qwen3-8b", TrainingPlan(layout=Layout(dp=8), recipe=recipe("mxfp8"), optimizer=optimizer("muon"), sp=False)),
]


@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_written_flags_read_back_the_same_plan(name: str, plan: TrainingPlan) -> None:
    plan = dataclasses.replace(plan, overlap_data=True, overlap_tensor=False)
    if plan.optimizer.source == "":
        plan = dataclasses.replace(plan, optimizer=optimizer("adamw"))
    model, workload = load_model(name), TrainingWorkload(seq=8192, global_batch=1024)
    words = write(model=model, plan=plan, workload=workload)
    assert options(words).unknown == ()
    found = read(
        ["torchrun", "--nproc_per_node", "8", "--nnodes", str(plan.layout.gpus // 8), "pretrain_gpt.py", *words]
    )
    assert found.plan == plan
    assert found.workload == workload
    assert found.architecture is not None
    assert found.architecture.tensors == model.tensors


def test_megatron_refuses_what_it_has_not() -> None:
    model, workload = load_model("llama-3.1-8b"), TrainingWorkload(seq=4096, global_batch=8)
    with pytest.raises(InputError, match="no schedule zbv"):
        write(model=model, plan=TrainingPlan(schedule="zbv"), workload=workload)
    with pytest.raises(InputError, match="no op-level recompute"):
        write(model=model, plan=TrainingPlan(recompute=Recompute(mode="op")), workload=workload)
    with pytest.raises(InputError, match="no lora training"):
        write(model=model, plan=TrainingPlan(), workload=TrainingWorkload(seq=1, global_batch=1, method="lora", rank=8))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (LLAMA3_70B.replace("parallel-size 4", "parallel-size 5"), "which does not divide the 64 GPUs"),
        (LLAMA3_70B.replace("batch-size 256", "batch-size 255"), "not a multiple of micro-batch 1 x data parallel 2"),
        (LLAMA3_70B.replace("--micro-batch-size 1", "--micro-batch-size -1"), "--micro-batch-size"),
        (LLAMA3_70B.replace("--seq-length 8192", "--seq-length nan"), "--seq-length 'nan' is not a whole number"),
        (LLAMA3_70B.replace("--hidden-size 8192", ""), "--num-layers is given without --hidden-size"),
        (LLAMA3_70B.replace("--num-query-groups 8", "--num-query-groups 7"), "--num-query-groups 7 does not divide"),
        (LLAMA3_70B + " --num-layers-per-virtual-pipeline-stage 3", "does not divide the 80 layers"),
        (LLAMA3_70B + " --fp8-format hybrid --fp8-recipe best", "--fp8-recipe 'best' is not known"),
        (LLAMA3_70B + " --recompute-granularity most", "--recompute-granularity 'most'"),
        (LLAMA3_70B + " --optimizer-cpu-offload --optimizer-offload-fraction nan", "--optimizer-offload-fraction"),
        (LLAMA3_70B + " --pipeline-model-parallel-layout t*x", "is not a layout"),
        (LLAMA3_70B + " --tensor-model-parallel-size $TP", "shell variable"),
    ],
)
def test_bad_flags_name_value_and_fix(flags: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("$", r"\$")):
        read(command(flags, nodes=8))


def test_a_script_with_arrays() -> None:
    script = f"""
#!/bin/bash
export GPUS_PER_NODE=8
NUM_NODES=8
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES  # as many as there are
)
MODEL_ARGS=({LLAMA3_70B})
torchrun ${{DISTRIBUTED_ARGS[@]}} megatron/pretrain_gpt.py \\
    "${{MODEL_ARGS[@]}}" --fp8-format hybrid
"""
    framework, words = extract([script])
    found = read_training(framework, words)
    assert (framework, found.gpus, found.plan.recipe.name, found.plan.layout.dp) == ("megatron", 64, "fp8", 2)
