"""Layers on pipeline stages: one placement for memory, time and exported layouts."""

from dataclasses import replace

import numpy as np
import pytest

from trilemma.engines.megatron.write import layout_text
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.pipeline_stages import place_layers
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, TrainingPlan, recipe
from trilemma.plans.pipeline import piece_sizes, stage_layers
from trilemma.timing.training_step import training_step
from trilemma.workloads import TrainingWorkload


@pytest.mark.parametrize("layers", [16, 32, 61, 80, 94, 126])
@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (4, 3), (8, 1), (8, 6), (16, 2)])
@pytest.mark.parametrize("mtp", [0, 1])
def test_every_layer_lies_somewhere_once(layers: int, pp: int, vpp: int, mtp: int) -> None:
    if pp * vpp > layers + 2:
        return
    pieces = piece_sizes(layers, pp, vpp, mtp=mtp)
    assert sum(pieces) == layers
    assert min(pieces) >= 0
    assert sum(stage_layers(layers, pp, vpp, "interleaved", mtp=mtp)) == layers + mtp
    placed = place_layers([0] * layers, 1, pp=pp, vpp=vpp, schedule="interleaved", mtp=mtp).counts[:, 0]
    assert placed.sum() == layers
    text = layout_text(layers, pp, vpp, None, mtp).split("|")
    assert [sum(text[piece].count("t") for piece in range(rank, pp * vpp, pp)) for rank in range(pp)] == placed.tolist()
    if pp * vpp <= layers:
        assert max(pieces[:-1]) - min(pieces[:-1]) <= 1
        assert pieces[-1] + mtp <= max(pieces)


def test_prediction_layers_count_as_layers_of_the_last_stage() -> None:
    """61 layers and one MTP layer over 16 stages: the last holds two layers and the MTP layer."""
    assert piece_sizes(61, 16, 1, mtp=1)[-1] == 2
    assert stage_layers(61, 16, 1, "1f1b", mtp=1) == (3, *(4,) * 14, 3)


@pytest.mark.parametrize(("name", "tp", "pp", "divides", "left_over"), [
    ("llama-3.1-70b", 2, 8, 5, 6), ("qwen3-32b", 4, 4, 8, 7), ("llama-3.1-405b", 8, 6, 7, 8),
])  # fmt: skip
def test_chunks_that_do_not_divide_the_layers_win_nothing(
    name: str, tp: int, pp: int, divides: int, left_over: int
) -> None:
    """Stages of as many layers take as long: the smaller bubble of more chunks is all that is gained."""
    cards = tp * pp * 8
    model, cluster = load_model(name), Cluster.of(find("h100-sxm"), cards)
    load = TrainingWorkload(seq=8192, global_batch=1024 // 8 * pp)
    plan = TrainingPlan(layout=Layout(tp=tp, pp=pp, vpp=divides, dp=8), schedule="interleaved", recipe=recipe("fp8"))
    even = training_step(model, cluster, plan, load)
    more = training_step(model, cluster, replace(plan, layout=replace(plan.layout, vpp=left_over)), load)
    beside = even.lines["bubble"] + even.lines["pipeline_exchange"]
    assert more.step_s - more.lines["bubble"] - more.lines["pipeline_exchange"] == pytest.approx(
        even.step_s - beside, rel=2e-3
    )


def test_a_table_of_plans_is_placed_row_by_row() -> None:
    model, cluster = load_model("llama-3.1-70b"), Cluster.of(find("h100-sxm"), 64)
    load = TrainingWorkload(seq=8192, global_batch=512)
    rows = Layout(tp=np.array([2, 2, 4]), pp=np.array([8, 8, 4]), vpp=np.array([5, 6, 3]), dp=np.array([4, 4, 4]))
    plan = TrainingPlan(layout=rows, schedule="interleaved")
    together = training_step(model, cluster, plan, load).step_s
    for at in range(3):
        layout = Layout(**{name: int(getattr(rows, name)[at]) for name in ("tp", "pp", "vpp", "dp")})
        assert together[at] == pytest.approx(training_step(model, cluster, replace(plan, layout=layout), load).step_s)
