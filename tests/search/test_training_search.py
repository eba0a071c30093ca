"""Training search: the rules, the counts, the ranking, and what follows from it."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from trilemma.errors import InputError
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.memory.training import training_memory
from trilemma.models.resolve import load_model
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Recompute, TrainingPlan
from trilemma.search import training_space as training_layouts_module
from trilemma.search.techniques import techniques
from trilemma.search.training import search_training
from trilemma.search.training_habits import RECOMPUTE_LADDER
from trilemma.search.training_layouts import THINNED, TrainingConstraints, legal, rows_of_schedule
from trilemma.search.training_questions import least_gpus, sensitivity, waterfall
from trilemma.search.training_rules import check_training_plan, training_violations
from trilemma.search.training_single import single_training_plan
from trilemma.search.training_space import training_space
from trilemma.timing.training_step import training_step
from trilemma.workloads import TrainingWorkload

MODEL = load_model("llama-3.1-8b")
CARD = find("h100-sxm")
CLUSTER = Cluster(accelerator=CARD, gpus=16, gpus_per_node=8)
LOAD = TrainingWorkload(seq=8192, global_batch=32)
SEARCH = search_training(MODEL, CLUSTER, LOAD)


def test_every_layout_multiplies_to_the_gpus() -> None:
    space = training_space(MODEL, CARD, LOAD, gpus=16, settled=TrainingConstraints())
    columns = space.rows.columns
    assert (columns["tp"] * columns["pp"] * columns["dp"] * columns["cp"] == 16).all()
    assert (32 % (columns["dp"] * columns["micro_batch"]) == 0).all()
    keys = np.stack(list(columns.values()))
    assert len(np.unique(keys, axis=1).T) == len(space.rows)
    assert (columns["vpp"] * columns["pp"] <= 32).all()
    assert np.any(32 % (columns["pp"] * columns["vpp"]))  # layers need not divide


def test_counts_add_up() -> None:
    assert SEARCH.fitting + sum(SEARCH.rejected.values()) == SEARCH.searched
    assert SEARCH.legal <= SEARCH.searched
    assert len(SEARCH.table) == SEARCH.fitting


def test_a_large_table_is_thinned_and_finds_the_same_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts add up, what is settled stays, and chunk counts between those priced would not have been better."""
    whole = search_training(MODEL, replace(CLUSTER, gpus=64), replace(LOAD, global_batch=256))
    monkeypatch.setattr(training_layouts_module, "MOST_ROWS", 100)
    thin = search_training(MODEL, replace(CLUSTER, gpus=64), replace(LOAD, global_batch=256))
    assert thin.searched <= whole.searched
    assert thin.rejected[THINNED] > thin.searched / 4
    assert thin.fitting + sum(thin.rejected.values()) == thin.searched
    assert thin.plans[0].step_s <= whole.plans[0].step_s * 1.005
    settled = search_training(
        MODEL, replace(CLUSTER, gpus=64), replace(LOAD, global_batch=256), settled=TrainingConstraints(tp=32, vpp=1)
    )
    assert set(settled.table.rows.columns["tp"].tolist()) == {32}


def test_ranking_and_front() -> None:
    steps = [one.step_s for one in SEARCH.plans[: SEARCH.best]]
    assert steps == sorted(steps)
    table = SEARCH.table
    assert steps[0] == table.step_s[table.sure].min()
    for at in SEARCH.pareto:
        one = SEARCH.plans[at]
        better = (table.step_s < one.step_s) & (
            np.ceil(table.device_bytes / 2**30) <= np.ceil(one.device_bytes / 2**30)
        )
        assert not better.any()


def test_rows_of_the_table_are_single_plans() -> None:
    """A table of plans and one plan are the same formulas."""
    table = SEARCH.table
    for at in np.linspace(0, len(table) - 1, 12).astype(int):
        plan = table.plan(int(at))
        memory = training_memory(MODEL, CLUSTER, plan, LOAD)
        step = training_step(MODEL, CLUSTER, plan, LOAD, moved_bytes=memory.moved_bytes or None)
        assert float(memory.device_bytes) == pytest.approx(table.device_bytes[at], rel=1e-12)
        assert float(step.step_s) == pytest.approx(table.step_s[at], rel=1e-12)


def test_the_ladder_of_recompute_rises_in_memory() -> None:
    """What does not fit with a leaner mode does not fit with a lighter one: the search's pruning rests on it."""
    space = training_space(MODEL, CARD, LOAD, gpus=16, settled=TrainingConstraints())
    for template in (family.template for family in space.families if family.template.zero == 1 and not family.rescue):
        rows = legal(MODEL, LOAD, template, rows_of_schedule(space.rows, template.schedule), Counter())
        needs = [
            np.asarray(training_memory(MODEL, CLUSTER, rows.plan(replace(template, recompute=mode)), LOAD).device_bytes)
            for mode in RECOMPUTE_LADDER
        ]
        for leaner, lighter in pairwise(needs):
            assert (lighter >= leaner * (1 - 1e-9)).all()


def test_pruning_loses_no_plan() -> None:
    """The best of a small space agrees with pricing every plan one by one."""
    settled = TrainingConstraints(tp=2, pp=4, micro_batch=1, recipes=("bf16",), zero=1)
    found = search_training(MODEL, CLUSTER, LOAD, settled=settled)
    space = training_space(MODEL, CARD, LOAD, gpus=16, settled=settled)
    best = np.inf
    for family in space.families:
        if family.rescue:
            continue
        rows = rows_of_schedule(space.rows, family.template.schedule)
        for at in range(len(rows)):
            for mode in family.ladder:
                plan = replace(rows.one(family.template, at), recompute=mode)
                if any(np.any(broken) for broken in training_violations(MODEL, plan, LOAD, gpus=16).values()):
                    continue
                if training_memory(MODEL, CLUSTER, plan, LOAD, all_stages=False).device_bytes <= found.capacity_bytes:
                    best = min(best, float(training_step(MODEL, CLUSTER, plan, LOAD).step_s))
    assert found.table.step_s.min() == pytest.approx(best, rel=1e-12)


def test_settled_degrees_stay() -> None:
    settled = TrainingConstraints(
        tp=4, pp=2, micro_batch=1, zero=1, recompute=Recompute(mode="full"), recipes=("bf16",)
    )
    for one in search_training(MODEL, CLUSTER, LOAD, settled=settled).plans:
        assert (one.plan.layout.tp, one.plan.layout.pp, one.plan.micro_batch) == (4, 2, 1)
        assert one.plan.recompute == Recompute(mode="full")


def test_more_of_a_resource_never_hurts() -> None:
    gains = sensitivity(MODEL, CLUSTER, LOAD, SEARCH)
    assert {gain.resource.partition(" in ")[0] for gain in gains} >= {"compute", "memory", "memory bandwidth"}
    assert all(gain.gain >= -1e-9 for gain in gains)


def test_least_gpus_hold_and_fewer_do_not() -> None:
    large = load_model("llama-3.1-70b")
    cluster = Cluster(accelerator=CARD, gpus=64, gpus_per_node=8)
    least = least_gpus(large, cluster, LOAD, TrainingConstraints())
    assert least is not None
    assert least.device_bytes <= CARD.runtime_total().value
    assert least.gpus == least.plan.layout.gpus
    half = Cluster(accelerator=CARD, gpus=least.gpus // 2, gpus_per_node=8)
    assert not least.offload
    fewer = search_training(large, half, LOAD, settled=TrainingConstraints(recipes=("bf16",)))
    assert not [one for one in fewer.plans if not one.plan.offload.any]


def test_the_waterfall_ends_at_the_best() -> None:
    steps = waterfall(MODEL, CLUSTER, LOAD, SEARCH)
    assert steps[-1].step_s == pytest.approx(SEARCH.plans[0].step_s)
    assert steps[-1].fits


def test_techniques_name_what_is_used() -> None:
    plan = TrainingPlan(
        layout=Layout(tp=2, pp=2, dp=2, cp=2, vpp=2), schedule="interleaved", recipe=recipe("fp8"),
        recompute=Recompute(mode="selective"), optimizer=optimizer("adamw"),
    )  # fmt: skip
    step = training_step(MODEL, CLUSTER, plan, LOAD)
    rows = {row.name: row for row in techniques(MODEL, CLUSTER, plan, LOAD, step)}
    assert list(rows) == ["TP2 + SP", "CP2", "PP2 VPP2", "DP2 ZeRO-1", "recompute", "fp8 tensor"]
    assert rows["TP2 + SP"].runs_on.startswith("NVLink")
    assert rows["PP2 VPP2"].runs_on == "network between nodes"


def test_the_same_question_has_the_same_answer() -> None:
    again = search_training(MODEL, CLUSTER, LOAD)
    assert again.plans == SEARCH.plans
    assert again.rejected == SEARCH.rejected


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (TrainingPlan(layout=Layout(tp=3, dp=4)), "tp does not divide the 32 attention heads"),
        (TrainingPlan(layout=Layout(tp=16)), None),
        (TrainingPlan(layout=Layout(pp=64)), "more pipeline pieces than the 32 layers"),
        (TrainingPlan(layout=Layout(pp=2, vpp=2, dp=8), schedule="interleaved", micro_batch=4), "interleaving needs"),
        (TrainingPlan(layout=Layout(dp=16), micro_batch=3), "micro-batch x dp does not divide"),
        (TrainingPlan(layout=Layout(dp=8, ep=2)), "expert parallelism without experts"),
        (TrainingPlan(layout=Layout(cp=8, tp=2), cp_exchange="all_to_all"), None),
        (TrainingPlan(layout=Layout(pp=2, dp=8), zero=3), "sharded gradients or weights"),
        (TrainingPlan(layout=Layout(pp=2, dp=8), zero=3, implementation="torchtitan"), None),
        (TrainingPlan(layout=Layout(pp=2, dp=8), implementation="deepspeed", zero=1), "pipeline or expert parallelism"),
    ],
)
def test_rules(plan: TrainingPlan, rule: str | None) -> None:
    broken = [name for name, mask in training_violations(MODEL, plan, LOAD).items() if np.any(mask)]
    if rule is None:
        assert broken == []
        return
    assert any(name.startswith(rule) for name in broken)
    with pytest.raises(InputError):
        check_training_plan(MODEL, plan, LOAD)


def test_mixtures_spread_experts_over_ranks_that_they_divide() -> None:
    mixture = load_model("qwen3-30b-a3b")
    space = training_space(mixture, CARD, LOAD, gpus=16, settled=TrainingConstraints())
    assert set(space.rows.columns["ep"]) == {1, 2, 4, 8, 16}
    with pytest.raises(InputError, match="does not divide the 16 ranks of a stage"):
        single_training_plan(mixture, CARD, LOAD, TrainingConstraints(ep=32), gpus=16)


def test_published_layouts_are_near_our_best() -> None:
    """Llama 3 70B in FP8 on 64 H100 at TP4 PP8 VPP5 and batch 256 (Megatron-Bridge 26.04: 1,664 tokens/s per GPU)."""
    model, load = load_model("llama-3.1-70b"), TrainingWorkload(seq=8192, global_batch=256)
    cluster = Cluster(accelerator=CARD, gpus=64, gpus_per_node=8)
    plan = single_training_plan(
        model, CARD, load, TrainingConstraints(tp=4, pp=8, vpp=5, recipes=("fp8-bf16-grads",)), gpus=64
    )
    assert training_memory(model, cluster, plan, load).device_bytes <= CARD.runtime_total().value
    step = training_step(model, cluster, plan, load)
    assert float(step.tokens_per_s_per_gpu) == pytest.approx(1664, rel=0.15)
    best = search_training(model, cluster, load).plans[0]
    assert float(step.step_s) <= 1.15 * best.step_s
