"""Training plans come back from the commands that are written for them: layouts, sharding, recompute, recipes, offloads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from trilemma.engines.megatron.write import write as write_megatron
from trilemma.engines.torchtitan.write import write as write_torchtitan
from trilemma.engines.training import TrainingCommand, read_training
from trilemma.errors import InputError
from trilemma.models.architecture import Model
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, Offload, Recompute, TrainingPlan, recipe
from trilemma.workloads import TrainingWorkload

LOAD = TrainingWorkload(seq=8192, global_batch=64)
LAYOUTS = (
    Layout(dp=8), Layout(tp=2, dp=4), Layout(tp=4, dp=2), Layout(cp=2, dp=4), Layout(tp=2, cp=2, dp=2), Layout(pp=2, dp=4),
    Layout(pp=4, vpp=2, dp=2), Layout(tp=2, pp=2, vpp=4, dp=2),
)  # fmt: skip


def megatron(plan: TrainingPlan, model: Model, load: TrainingWorkload = LOAD) -> TrainingCommand:
    nodes = max(int(plan.layout.gpus) // 8, 1)
    start = [
        "torchrun",
        "--nproc_per_node",
        str(min(int(plan.layout.gpus), 8)),
        "--nnodes",
        str(nodes),
        "pretrain_gpt.py",
    ]
    return read_training("megatron", [*start, *write_megatron(model=model, plan=plan, workload=load)])


def torchtitan(plan: TrainingPlan, model: Model, load: TrainingWorkload = LOAD) -> TrainingCommand:
    start = ["torchrun", "--nproc_per_node", str(int(plan.layout.gpus)), "-m", "torchtitan.train"]
    return read_training("torchtitan", [*start, *write_torchtitan(model=model, plan=plan, workload=load)])


def told(plan: TrainingPlan) -> dict[str, Any]:
    """What a command says of a plan."""
    names = ("layout", "micro_batch", "zero", "sp", "recompute", "attention", "schedule", "cp_exchange")
    found = {name: getattr(plan, name) for name in names}
    found |= {"matmul": plan.recipe.matmul, "gradients": plan.recipe.gradients, "gathered": plan.recipe.gathered}
    found |= {"optimizer": plan.optimizer.name, "offload": plan.offload, "shard_group": plan.shard_group}
    return found


def changes() -> Iterator[dict[str, Any]]:
    for layout in LAYOUTS:
        yield {"layout": layout, "schedule": "interleaved" if layout.vpp > 1 else "1f1b"}
    for micro in (1, 2, 4):
        yield {"micro_batch": micro}
    for zero in (0, 1, 2, 3):
        yield {"zero": zero}
    for name in ("bf16", "bf16-bf16-grads", "fp8-bf16-grads"):
        yield {"recipe": recipe(name)}
    yield {"recompute": Recompute(mode="full")}
    yield {"recompute": Recompute(mode="full", layers=5)}
    yield {"recompute": Recompute(mode="selective", parts=("core_attn",))}
    yield {"recompute": Recompute(mode="selective", parts=("layernorm", "mlp"))}
    yield {"attention": "eager"}
    yield {"offload": Offload(optimizer=0.5)}
    yield {"offload": Offload(activations=0.25)}
    yield {"layout": Layout(dp=16), "zero": 1, "shard_group": 8}
    yield {"layout": Layout(tp=2, dp=4), "sp": False}
    yield {"layout": Layout(cp=2, dp=4), "cp_exchange": "all_to_all"}


def _named(change: dict[str, Any]) -> str:
    return "-".join(change)


@pytest.mark.parametrize("change", list(changes()), ids=_named)
def test_megatron_reads_what_was_written(change: dict[str, Any]) -> None:
    plan = replace(TrainingPlan(layout=Layout(dp=8), recipe=recipe("bf16"), zero=1, schedule="1f1b"), **change)
    found = megatron(plan, load_model("llama-3.1-8b"))
    expected = told(plan)
    if int(plan.layout.tp) == 1:
        expected["sp"] = found.plan.sp
    assert told(found.plan) == expected
    assert (found.workload.seq, found.workload.global_batch) == (8192, 64)
    assert found.gpus == int(plan.layout.gpus)
    assert not found.unknown_flags


@pytest.mark.parametrize(("layers_on_stages", "vpp"), [((7, 8, 8, 9), 1), ((9, 8, 8, 7), 1), ((6, 10, 10, 6), 1)])
def test_megatron_writes_uneven_stages(layers_on_stages: tuple[int, ...], vpp: int) -> None:
    plan = TrainingPlan(
        layout=Layout(pp=4, vpp=vpp, dp=2), recipe=recipe("bf16"), schedule="1f1b", pipeline_layers=layers_on_stages
    )
    words = write_megatron(model=load_model("llama-3.1-8b"), plan=plan, workload=LOAD)
    first, last = (words[words.index(f"--decoder-{end}-pipeline-num-layers") + 1] for end in ("first", "last"))
    assert (int(first), int(last)) == (layers_on_stages[0], layers_on_stages[-1])
    assert megatron(plan, load_model("llama-3.1-8b")).plan.pipeline_layers == layers_on_stages


def test_megatron_counts_both_ends_where_two_more_layers_divide() -> None:
    # 78 layers and two ends are 80: sixteen chunks of five (Megatron-LM --account-for-embedding-in-pipeline-split).
    model = load_model("llama-3.1-8b")
    plan = TrainingPlan(layout=Layout(pp=2, dp=4), recipe=recipe("bf16"), schedule="1f1b")
    assert "--account-for-loss-in-pipeline-split" not in write_megatron(model=model, plan=plan, workload=LOAD)
    odd = replace(plan, layout=Layout(pp=17, dp=1))
    assert "--account-for-loss-in-pipeline-split" in write_megatron(model=model, plan=odd, workload=LOAD)
    neither = replace(plan, layout=Layout(pp=3, dp=2))
    assert "--pipeline-model-parallel-layout" in write_megatron(model=model, plan=neither, workload=LOAD)


@pytest.mark.parametrize(
    "change",
    [
        *({"layout": layout, "zero": 3} for layout in (Layout(dp=8), Layout(tp=2, dp=4), Layout(cp=2, dp=4))),
        {"layout": Layout(dp=8), "zero": 3, "shard_group": 4},
        {"layout": Layout(cp=2, dp=4), "zero": 3, "shard_group": 4},
        {"recompute": Recompute(mode="full"), "zero": 3},
        {"recompute": Recompute(mode="op"), "zero": 3},
        {"layout": Layout(tp=2, dp=4), "sp": False, "zero": 3},
        {"micro_batch": 2, "zero": 3},
    ],
    ids=_named,
)
def test_torchtitan_reads_what_was_written(change: dict[str, Any]) -> None:
    plan = replace(
        TrainingPlan(layout=Layout(dp=8), recipe=recipe("fsdp"), implementation="torchtitan", schedule="1f1b"), **change
    )
    found = torchtitan(plan, load_model("llama-3.1-8b"))
    for name in ("layout", "micro_batch", "zero", "recompute"):
        assert getattr(found.plan, name) == getattr(plan, name), name
    if int(plan.layout.tp) > 1:
        assert found.plan.sp == plan.sp
    whole = int(plan.layout.dp) * int(plan.layout.cp)
    assert (found.plan.shard_group or whole) == (plan.shard_group or whole)
    assert (found.workload.seq, found.workload.global_batch) == (8192, 64)


@pytest.mark.parametrize("layout", [Layout(dp=8), Layout(cp=2, dp=4), Layout(tp=2, dp=4)])
def test_sizes_are_written_as_whole_numbers(layout: Layout) -> None:
    plan = TrainingPlan(layout=layout, recipe=recipe("fsdp"), implementation="torchtitan", schedule="1f1b", zero=3)
    words = write_torchtitan(model=load_model("llama-3.1-8b"), plan=plan, workload=LOAD)
    degrees = [words[at + 1] for at, word in enumerate(words) if word.endswith(("_degree", "_size", "seq_len"))]
    assert len(degrees) >= 6
    assert all(word.lstrip("-").isdecimal() for word in degrees)


def test_steps_of_a_trainer_are_tokens() -> None:
    words = "torchrun --nproc_per_node 8 train.py --model_name_or_path llama-2-7b --per_device_train_batch_size 2"
    more = " --gradient_accumulation_steps 4 --max_steps 100 --max_seq_length 2048"
    found = read_training("transformers", (words + more).split())
    assert found.workload.global_batch == 2 * 4 * 8
    assert found.workload.tokens == 100 * 64 * found.workload.seq


def test_a_global_batch_that_is_no_multiple_names_the_product() -> None:
    plan = TrainingPlan(layout=Layout(dp=8), recipe=recipe("bf16"), zero=1, schedule="1f1b", micro_batch=2)
    words = write_megatron(model=load_model("llama-3.1-8b"), plan=plan, workload=replace(LOAD, global_batch=72))
    with pytest.raises(InputError, match=r"72 is not a multiple of micro-batch 2 x data parallel 8 = 16"):
        read_training("megatron", ["torchrun", "--nproc_per_node", "8", "pretrain_gpt.py", *words])
