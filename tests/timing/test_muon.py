"""Muon multiplies every matrix towards an orthogonal one: what that costs, alone and spread over replicas."""

from dataclasses import replace

import pytest

from trilemma.cli.main import main
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, TrainingPlan, optimizer, recipe
from trilemma.timing.training_operators import training_work
from trilemma.timing.training_step import training_step
from trilemma.workloads import TrainingWorkload

MUON, ADAMW = optimizer("muon"), optimizer("adamw")


def test_products_of_an_8b_model() -> None:
    """Llama-3.1-8B: 4m²n + 2m³ of each matrix in each of five steps, 666 TFLOP in all (by hand from the shapes)."""
    square = 4 * 4096**3 + 2 * 4096**3
    narrow = 4 * 1024**2 * 4096 + 2 * 1024**3
    wide = 4 * 4096**2 * 14336 + 2 * 4096**3
    expected = 32 * (2 * square + 2 * narrow + 3 * wide)
    dense, routed = training_work(load_model("llama-3.1-8b"), mtp=False).newton_schulz
    assert dense == pytest.approx(expected)
    assert 5 * dense == pytest.approx(666e12, rel=0.01)
    assert routed == 0


@pytest.mark.parametrize(("name", "layout", "zero"), [
    ("llama-3.1-8b", {"dp": 8}, 1), ("llama-3.1-8b", {"dp": 8}, 0), ("qwen2.5-0.5b", {"dp": 8}, 1),
    ("moonlight-16b-a3b", {"dp": 8, "ep": 8}, 1), ("qwen3-30b-a3b", {"dp": 4, "tp": 2, "ep": 8}, 1),
    ("llama-3.2-3b", {"dp": 8}, 3), ("qwen3-32b", {"tp": 4, "pp": 2}, 1),
])  # fmt: skip
@pytest.mark.parametrize("card", ["h100-sxm", "b200"])
def test_a_step_is_never_faster_than_with_adamw(name: str, layout: dict[str, int], zero: int, card: str) -> None:
    plan = TrainingPlan(layout=Layout(**layout), zero=zero, recipe=recipe("bf16"), optimizer=MUON)
    model, cluster, load = load_model(name), Cluster.of(find(card), 8), TrainingWorkload(seq=4096, global_batch=16)
    muon, adamw = (training_step(model, cluster, replace(plan, optimizer=one), load) for one in (MUON, ADAMW))
    assert muon.step_s > adamw.step_s
    assert muon.lines["newton_schulz"] > 0
    assert adamw.lines["newton_schulz"] == 0


def test_replicas_share_the_products_of_a_sharded_optimizer() -> None:
    model, cluster, load = (
        load_model("llama-3.1-8b"),
        Cluster.of(find("h100-sxm"), 8),
        TrainingWorkload(seq=4096, global_batch=8),
    )
    plan = TrainingPlan(layout=Layout(dp=8), optimizer=MUON)
    spread, alone = (
        training_step(model, cluster, replace(plan, zero=zero), load).lines["newton_schulz"] for zero in (1, 0)
    )
    assert alone == pytest.approx(8 * spread, rel=1e-6)
    assert spread == pytest.approx(0.17, rel=0.35)


def test_the_screen_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "qwen3-8b", "--gpu", "h100-sxm:8", "--train", "4096", "--global-batch", "8", "--optimizer", "muon"])
    assert "Newton–Schulz" in capsys.readouterr().out
