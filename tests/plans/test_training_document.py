"""Training plans as documents: what is written is read back, what is wrong is named."""

import json

import numpy as np
import pytest

from trilemma.data.files import read_data
from trilemma.errors import InputError
from trilemma.plans.plan import Layout
from trilemma.plans.recipes import optimizer, recipe
from trilemma.plans.training import Offload, Recompute, TrainingPlan
from trilemma.plans.training_document import (
    training_plan_from_document,
    training_plan_to_document,
    training_workload_from_document,
    training_workload_to_document,
)
from trilemma.workloads import TrainingWorkload

KNOWN = read_data("training_recipes.toml")


@pytest.mark.parametrize("name", KNOWN["recipe"])
def test_plan_survives_json(name: str) -> None:
    for kind in KNOWN["optimizer"]:
        plan = TrainingPlan(
            layout=Layout(tp=4, pp=8, vpp=5, dp=16, ep=2),
            recipe=recipe(name),
            optimizer=optimizer(kind),
            recompute=Recompute(mode="selective", parts=("core_attn", "moe")),
            offload=Offload(optimizer=0.5),
            pipeline_layers=(9, 11),
            shard_group=8,
            overlap_data=True,
        )
        assert training_plan_from_document(json.loads(json.dumps(training_plan_to_document(plan)))) == plan


def test_table_becomes_lists_and_back() -> None:
    plan = TrainingPlan(layout=Layout(tp=np.array([1, 2]), dp=np.array([2, 1])))
    again = training_plan_from_document(json.loads(json.dumps(training_plan_to_document(plan))))
    assert again.layout.tp.tolist() == [1, 2]


def test_workload_survives_json() -> None:
    workload = TrainingWorkload(
        seq=4096, global_batch=64, method="qlora", rank=16, targets=("attention", "ffn"), tokens=1e9
    )
    document = json.loads(json.dumps(training_workload_to_document(workload)))
    assert training_workload_from_document(document) == workload


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"layout": {"tp": 0}}, "`tp` 0"),
        ({"layout": {"tp": 1.5}}, "plan.layout.tp 1.5"),
        ({"layout": {"tpp": 1}}, "unknown key 'tpp'"),
        ({"zero": 9}, "`zero` 9"),
        ({"micro_batch": -1}, "plan.micro_batch -1"),
        ({"imbalance": float("nan")}, "plan.imbalance nan"),
        ({"recompute": {"mode": "most"}}, "`recompute` 'most'"),
        ({"recipe": {}}, "plan.recipe lacks name"),
        ([], "plan is not an object"),
    ],
)
def test_wrong_plans_are_named(document: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        training_plan_from_document(document)
