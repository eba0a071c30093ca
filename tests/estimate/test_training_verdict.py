"""Verdicts of training: the host's memory beside the card's, and what is not counted."""

from dataclasses import replace
from typing import Any

import pytest

from trilemma.errors import PlanWarning
from trilemma.estimate.doubt import with_warnings
from trilemma.estimate.estimate import Estimate
from trilemma.estimate.training import estimate_training
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, TrainingPlan, recipe
from trilemma.plans.training import Offload, Recompute
from trilemma.quantities import GIB
from trilemma.question import Question
from trilemma.workloads import TrainingWorkload


def sharded(**extra: Any) -> TrainingPlan:
    return TrainingPlan(
        layout=Layout(dp=8), zero=3, implementation="deepspeed", recipe=recipe("zero-bf16"), recompute=Recompute(mode="full"),
        **extra,
    )  # fmt: skip


def estimate(name: str, plan: TrainingPlan, *, card: str = "a100-sxm4-80gb", **extra: Any) -> Estimate:
    cluster = Cluster.of(find(card), int(plan.layout.gpus))
    cluster = replace(cluster, host_memory_bytes=extra.pop("host", None))
    load = TrainingWorkload(seq=2048, global_batch=8)
    return estimate_training(Question(model=load_model(name), cluster=cluster, workload=load, plan=plan), **extra)


AWAY = Offload(optimizer=1.0, weights=1.0)


def test_a_host_that_holds_the_state_of_70b() -> None:
    """Llama-2-70B under ZeRO-3 with all state on the host: 20 bytes a parameter (BF16 weights and gradients, FP32
    weights, gradients and two moments) are 1.4 TB; a host of 1,024 GB failed (axolotl issue 1439)."""
    plan = sharded(offload=AWAY)
    small, large = (estimate("llama-2-70b", plan, host=size * GIB) for size in (954, 2048))
    assert not small.fits
    assert "host memory" in small.verdict.reason
    assert large.fits
    told = large.host_memory
    assert told["needed_low_bytes"] == pytest.approx(20 * 69e9, rel=0.03)
    assert told["needed_low_bytes"] < told["needed_bytes"] < told["needed_high_bytes"]


def test_an_unknown_host_makes_no_verdict_sure() -> None:
    found = estimate("llama-2-70b", sharded(offload=AWAY))
    assert found.verdict.probability < 0.95
    assert "--host-memory" in found.host_memory["words"]
    assert not estimate("llama-3.1-8b", sharded()).host_memory


def test_33b_needs_what_was_seen_to_suffice() -> None:
    """DeepSpeed issue 3448: a 33B model fails with 600 GB of host memory and runs in 750 to 800."""
    plan = sharded(offload=AWAY)
    assert estimate("yi-34b", plan, host=1024 * GIB).verdict.probability > 0.9
    assert not estimate("yi-34b", plan, host=540 * GIB).fits


def test_a_tower_that_is_not_counted_is_a_range() -> None:
    """gemma-3-27b reads images: its tower may train whole, or not at all."""
    plan = TrainingPlan(layout=Layout(tp=8), recompute=Recompute(mode="full"), recipe=recipe("bf16"))
    found = estimate("gemma-3-27b", plan, card="b300")
    assert found.fits
    assert found.verdict.probability <= 0.9
    alone = estimate("qwen3-32b", plan, card="b300")
    assert alone.verdict.probability > 0.99
    width = found.memory.total.high - found.memory.total.value
    assert width > 0.05 * found.memory.total.value + 4 * 0.4e9


def test_what_a_command_asks_for_beside_is_never_sure() -> None:
    plan = sharded()
    unsure = with_warnings(estimate("llama-3.1-8b", plan), (PlanWarning(code="not-counted", message="--x"),))
    assert estimate("llama-3.1-8b", plan).verdict.probability > 0.94
    assert unsure.fits
    assert unsure.verdict.probability <= 0.9


def test_the_processor_takes_its_time() -> None:
    """A step of Qwen3-30B-A3B on 16 H100 takes 4.2 times as long with all moments on the host, and 15.3 GB less on each card
    (Megatron-Bridge, docs/training/cpu-offloading.md); gradients and master weights stay."""
    cluster, load = Cluster.of(find("h100-sxm"), 16), TrainingWorkload(seq=4096, global_batch=8)
    layout = Layout(tp=2, pp=2, dp=4, ep=4)
    here = TrainingPlan(layout=layout, recipe=recipe("bf16-bf16-grads"))
    model = load_model("qwen3-30b-a3b")
    near, quarter, away = (
        estimate_training(
            Question(model=model, cluster=cluster, workload=load, plan=replace(here, offload=Offload(optimizer=share)))
        )
        for share in (0.0, 0.25, 1.0)
    )
    lines = [{line.name: float(line.bytes) for line in one.memory.ledger} for one in (near, away)]
    assert lines[0]["optimizer"] == pytest.approx(15.3e9, rel=0.02)
    assert "optimizer" not in lines[1]
    assert lines[1]["gradients"] == lines[0]["gradients"]
    assert lines[1]["master_weights"] == lines[0]["master_weights"]
    seconds = [one.speed.step_s.interval for one in (near, quarter, away)]  # type: ignore[union-attr]
    assert seconds[2].value / seconds[0].value == pytest.approx(4.2, rel=0.15)
    assert seconds[1].value - seconds[0].value == pytest.approx((seconds[2].value - seconds[0].value) / 4, rel=0.02)
    assert seconds[2].high / seconds[2].value > 1.5  # what is known of processors, and of mixtures on cards
