"""A step of training: properties that hold whatever the coefficients, and one code path for one plan and for tables."""

from dataclasses import replace

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, Recompute, TrainingPlan, recipe
from trilemma.timing.flops_conventions import model_flops_per_token
from trilemma.timing.training_collectives import Fabric
from trilemma.timing.training_loads import training_loads
from trilemma.timing.training_operators import training_work
from trilemma.timing.training_step import StepTime, training_step
from trilemma.workloads import TrainingWorkload

LOAD = TrainingWorkload(seq=8192, global_batch=512)


@pytest.fixture(scope="module")
def llama() -> Model:
    return load_model("llama-3.1-70b")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster.of(find("h100-sxm"), 512)


def plan_of(**changes: object) -> TrainingPlan:
    settings: dict[str, object] = {"layout": Layout(tp=4, pp=8, dp=16), "recipe": recipe("bf16-bf16-grads")}
    return TrainingPlan(**{**settings, **changes})  # type: ignore[arg-type]


def step(model: Model, cluster: Cluster, plan: TrainingPlan, load: TrainingWorkload = LOAD) -> StepTime:
    return training_step(model, cluster, plan, load)


def test_lines_and_resources_sum_to_the_step(llama: Model, cluster: Cluster) -> None:
    found = step(llama, cluster, plan_of())
    assert sum(map(float, found.lines.values())) == pytest.approx(float(found.step_s))
    assert sum(map(float, found.resources.values())) == pytest.approx(float(found.step_s))
    assert all(float(value) >= 0 for value in (*found.lines.values(), *found.hidden.values()))
    assert float(found.tokens_per_s_per_gpu) == pytest.approx(8192 * 512 / 512 / float(found.step_s))


def test_a_table_of_plans_is_its_plans_one_by_one(llama: Model, cluster: Cluster) -> None:
    tp, pp = np.array([1, 2, 4, 8, 8]), np.array([8, 4, 8, 1, 16])
    table = step(
        llama, cluster, plan_of(layout=Layout(tp=tp, pp=pp, dp=512 // (tp * pp)), micro_batch=np.array([1, 2, 1, 1, 4]))
    )
    for at in range(5):
        layout = Layout(tp=int(tp[at]), pp=int(pp[at]), dp=512 // int(tp[at] * pp[at]))
        alone = step(llama, cluster, plan_of(layout=layout, micro_batch=(1, 2, 1, 1, 4)[at]))
        assert float(table.step_s[at]) == pytest.approx(float(alone.step_s))
        assert float(np.broadcast_to(table.lines["bubble"], 5)[at]) == pytest.approx(float(alone.lines["bubble"]))


def test_bubble_is_that_of_equal_stages(cluster: Cluster) -> None:
    """Without logits worth speaking of every stage is alike: idle over busy and idle is (p − 1)/(m + p − 1)."""
    model = load_model("llama-3.1-405b")
    small = replace(model, layers=model.layers[:64])
    found = step(small, cluster, plan_of(layout=Layout(tp=8, pp=8, dp=8)))
    m, p = 64, 8
    busy = sum(
        float(found.lines[name])
        for name in found.lines
        if name not in ("bubble", "optimizer", "data_parallel", "step", "stragglers")
    )
    share = float(found.lines["bubble"]) / (busy + float(found.lines["bubble"]))
    assert share == pytest.approx((p - 1) / (m + p - 1), rel=0.1)


def test_full_recompute_adds_exactly_the_forward_flops_of_the_layers(llama: Model, cluster: Cluster) -> None:
    work, fabric = training_work(llama), Fabric.of(cluster)
    plain, full = (
        training_loads(work, plan_of(recompute=Recompute(mode=mode)), LOAD, fabric) for mode in ("none", "full")
    )

    def flops(loads: object) -> float:
        done = loads.passes  # type: ignore[attr-defined]
        parts = (
            (loads.linear.flops + loads.plain.flops, done.linears),  # type: ignore[attr-defined]
            (loads.feed_forward.flops, done.feed_forward),  # type: ignore[attr-defined]
            (loads.experts.flops, done.experts),  # type: ignore[attr-defined]
            (loads.attention.flops, done.attention),  # type: ignore[attr-defined]
        )
        return float(sum(one * (1 + sum(repeats)) for one, repeats in parts))

    forward = float(
        plain.linear.flops + plain.plain.flops + plain.feed_forward.flops + plain.experts.flops + plain.attention.flops
    )
    assert flops(full) - flops(plain) == pytest.approx(forward, rel=1e-12)
    half = training_loads(work, plan_of(recompute=Recompute(mode="full", layers=5)), LOAD, fabric)
    assert flops(half) - flops(plain) == pytest.approx(forward / 2, rel=1e-12)


def test_recompute_shows_in_hfu_and_not_in_mfu_per_token(llama: Model, cluster: Cluster) -> None:
    plain, full = (step(llama, cluster, plan_of(recompute=Recompute(mode=mode))) for mode in ("none", "full"))
    assert float(plain.hfu) == pytest.approx(float(plain.mfu))
    assert float(full.hfu) / float(full.mfu) == pytest.approx(1.32, abs=0.03)
    assert float(full.step_s) > float(plain.step_s) * 1.2


@pytest.mark.parametrize(
    ("name", "convention", "gflops"),
    [
        # GFLOPs a token that NVIDIA prints for these models at 8K: causal (Megatron-Bridge) and whole attention (NeMo 24.07).
        ("llama-3-8b", "causal", 51.47), ("llama-3-70b", "causal", 449.2), ("llama-3.1-405b", "causal", 2524.0),
        ("llama-3-8b", "full", 57.91), ("llama-3-70b", "full", 481.4), ("llama-3.1-405b", "full", 2625.0),
    ],
)  # fmt: skip
def test_conventions_give_the_published_flops_per_token(name: str, convention: str, gflops: float) -> None:
    assert model_flops_per_token(training_work(load_model(name)), 8192, convention) / 1e9 == pytest.approx(
        gflops, rel=1e-3
    )


def test_an_unknown_convention_is_refused(llama: Model) -> None:
    with pytest.raises(InputError, match="not known; use causal"):
        model_flops_per_token(training_work(llama), 8192, "palm")


def test_overlap_hides_but_never_makes_faster_than_no_exchange(llama: Model, cluster: Cluster) -> None:
    beside, after = (step(llama, cluster, plan_of(overlap_data=on)) for on in (True, False))
    assert float(beside.lines["data_parallel"]) < float(after.lines["data_parallel"])
    assert float(beside.lines["data_parallel"]) + float(beside.hidden["data_parallel"]) == pytest.approx(
        float(after.lines["data_parallel"])
    )


def test_interleaving_and_zero_bubble_shorten_the_step(llama: Model, cluster: Cluster) -> None:
    plain = step(llama, cluster, plan_of())
    woven = step(llama, cluster, plan_of(layout=Layout(tp=4, pp=8, dp=16, vpp=10), schedule="interleaved"))
    split = step(llama, cluster, plan_of(schedule="zb-h1"))
    assert float(woven.lines["bubble"]) < float(plain.lines["bubble"]) / 8
    assert float(split.lines["bubble"]) < float(plain.lines["bubble"]) / 2


def test_loader_that_cannot_keep_up_sets_the_step(llama: Model, cluster: Cluster) -> None:
    free = step(llama, cluster, plan_of())
    assert float(free.lines["loading"]) == 0
    slow = training_step(llama, cluster, plan_of(), LOAD, loading_s=20.0)
    assert float(slow.step_s) == pytest.approx(20.0)
    assert float(slow.lines["loading"]) == pytest.approx(20.0 - float(free.step_s))


def test_offloaded_activations_hide_behind_work_until_the_link_is_full(llama: Model, cluster: Cluster) -> None:
    little, much = (
        training_step(llama, cluster, plan_of(), LOAD, moved_bytes={"activations": n_bytes}) for n_bytes in (1e9, 1e12)
    )
    assert float(little.lines["offload"]) < 0.05 * 1e9 / 55e9
    assert float(much.lines["offload"]) > 0.5 * 1e12 / 64e9


def test_adapters_leave_out_weight_gradients(llama: Model, cluster: Cluster) -> None:
    full = step(llama, cluster, plan_of())
    lora = step(llama, cluster, plan_of(), TrainingWorkload(seq=8192, global_batch=512, method="lora", rank=16))
    assert float(lora.passes["weight_gradient"]) == 0
    assert 0.6 < float(lora.step_s / full.step_s) < 0.85


def test_mixture_pays_for_the_fullest_expert_rank() -> None:
    model, cluster = load_model("qwen3-30b-a3b"), Cluster.of(find("h100-sxm"), 16)
    load = TrainingWorkload(seq=4096, global_batch=64)
    even, skewed = (
        step(model, cluster, plan_of(layout=Layout(dp=16, ep=16), imbalance=skew), load) for skew in (1.0, 1.5)
    )
    assert float(skewed.lines["experts"]) > 1.2 * float(even.lines["experts"])
    assert float(skewed.lines["expert_exchange"]) > float(even.lines["expert_exchange"])


def test_a_hundred_thousand_plans_take_about_a_second(llama: Model, cluster: Cluster) -> None:
    import time

    n = 20_000
    tp, pp = np.resize([1, 2, 4, 8], n), np.resize([1, 2, 4, 8, 16], n)
    table = plan_of(layout=Layout(tp=tp, pp=pp, dp=512 // (tp * pp)))
    step(llama, cluster, table)
    start = time.process_time()
    step(llama, cluster, table)
    assert time.process_time() - start < 1.0  # a fifth of what is asked: the machine may be busy
