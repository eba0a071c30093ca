"""Frozen weights are gathered as they are stored, whatever the adapters are held in."""

import pytest

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, TrainingPlan, recipe
from trilemma.plans.training import Recompute
from trilemma.timing.training_collectives import Fabric
from trilemma.timing.training_loads import training_loads
from trilemma.timing.training_operators import training_work
from trilemma.timing.training_step import training_step
from trilemma.workloads import TrainingWorkload

CARDS = Cluster.of(find("rtx-4090"), 2, gpus_per_node=2)


def gathered(name: str, held: str, **load: object) -> float:
    """Bytes that a rank takes in for one micro-batch of one replica of two."""
    model = load_model(name)
    plan = TrainingPlan(layout=Layout(dp=2), zero=3, implementation="transformers", recipe=recipe(held))
    workload = TrainingWorkload(seq=2048, global_batch=2, **load)  # type: ignore[arg-type]
    near, far = training_loads(training_work(model, mtp=False), plan, workload, Fabric.of(CARDS)).shard
    assert far == 0
    return float(near)


@pytest.mark.parametrize("name", ["llama-2-7b", "qwen2.5-14b"])
@pytest.mark.parametrize("held", ["amp", "pure-bf16"])
def test_bytes_follow_storage(name: str, held: str) -> None:
    elements = sum(one.elements for one in load_model(name).tensors if one.role != "norm")
    lora = gathered(name, held, method="lora", rank=1)
    qlora = gathered(name, held, method="qlora", rank=1)
    assert lora == pytest.approx(2 * 2 * elements / 2, rel=0.02)  # twice, two bytes each, the half that a rank lacks
    assert qlora / lora == pytest.approx(4.127 / 16, rel=0.02)


def test_a_34b_on_two_cards_over_pcie() -> None:
    """Yi-34B, NF4 with FSDP, rank 64, sequences of 2,048, two a card: 8.09 s (AnswerDotAI/fsdp_qlora benchmarks_03_2024.md)."""
    plan = TrainingPlan(
        layout=Layout(dp=2), zero=3, micro_batch=2, implementation="transformers", recipe=recipe("amp"),
        recompute=Recompute(mode="full"), attention="sdpa",
    )  # fmt: skip
    load = TrainingWorkload(seq=2048, global_batch=4, method="qlora", rank=64)
    step = training_step(load_model("yi-34b"), CARDS, plan, load)
    assert float(step.step_s) == pytest.approx(8.09, rel=0.2)
