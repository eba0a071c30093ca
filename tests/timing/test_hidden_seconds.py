"""Collectives of a training step: what hides behind computation and what shows is the whole of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, TrainingPlan, recipe
from trilemma.search.training_rules import training_violations
from trilemma.timing.training_step import StepTime, training_step
from trilemma.workloads import TrainingWorkload

LOAD = TrainingWorkload(seq=4096, global_batch=256)


def step(**changes: object) -> StepTime:
    settings: dict[str, object] = {"layout": Layout(dp=64), "recipe": recipe("bf16-bf16-grads"), "zero": 3}
    plan = TrainingPlan(**{**settings, **changes})  # type: ignore[arg-type]
    return training_step(load_model("llama-3.1-8b"), Cluster.of(find("h100-sxm"), 64), plan, LOAD)


@pytest.mark.parametrize("zero", [1, 2])
def test_hidden_and_exposed_seconds_of_replicas_are_those_without_overlap(zero: int) -> None:
    beside, after = step(zero=zero, overlap_data=True), step(zero=zero, overlap_data=False)
    assert float(after.hidden["data_parallel"]) == pytest.approx(0.0, abs=1e-9)
    whole = float(beside.hidden["data_parallel"]) + float(beside.lines["data_parallel"])
    assert whole == pytest.approx(float(after.lines["data_parallel"]))
    assert 0 < float(beside.hidden["data_parallel"]) < whole


def test_sharded_weights_take_the_same_whole_whatever_hides_them() -> None:
    # Three volumes of weights a micro-batch: gathered forward, gathered backward, gradients scattered (Zhao et al. 2023).
    one, two = step(micro_batch=1), step(micro_batch=2)
    whole = [float(one.hidden["sharded_weights"]) + float(one.lines["sharded_weights"]) for one in (one, two)]
    assert whole[0] == pytest.approx(2 * whole[1], rel=0.02)
    fractions = float(one.communication_fraction), float(one.hidden_communication_fraction)
    assert sum(fractions) * float(one.step_s) == pytest.approx(whole[0], rel=0.02)


@pytest.mark.parametrize(
    ("pp", "vpp", "legal"), [(4, 3, True), (2, 17, True), (2, 8, True), (5, 3, False), (4, 5, False)]
)
def test_torchtitan_counts_both_ends_as_a_layer_when_it_cuts_stages(pp: int, vpp: int, legal: bool) -> None:
    # 32 layers and one for each end (torchtitan/distributed/pipeline_parallel.py): 12 stages of 3, 34 of 1; 16 of 2 without.
    plan = TrainingPlan(
        layout=Layout(pp=pp, vpp=vpp), recipe=recipe("bf16"), implementation="torchtitan", schedule="interleaved",
    )  # fmt: skip
    rules = training_violations(load_model("llama-3.1-8b"), plan, replace(LOAD, global_batch=pp * vpp * 4))
    broken = next(value for rule, value in rules.items() if rule.startswith("torchtitan cuts"))
    assert bool(broken) != legal
