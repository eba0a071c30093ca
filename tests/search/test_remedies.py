"""What would make a plan fit really makes it fit when it is fed back."""

from __future__ import annotations

import shlex

import pytest

from trilemma import engines
from trilemma.estimate.serving import estimate
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.quantized import requantize
from trilemma.models.resolve import load_model
from trilemma.plans import EngineRef, Layout, Plan, Pool, ServeOptions
from trilemma.question import Question
from trilemma.search import Constraints
from trilemma.search.nearest import nearest_miss
from trilemma.search.remedies import remedies
from trilemma.workloads import Serving

CASES = [
    ("deepseek-r1", "h100-sxm", 8, 163840),
    ("llama-3.1-70b", "h100-sxm", 2, 131072),
    ("llama-3.1-8b", "rtx-4090", 1, 131072),
    ("qwen3-32b", "l40s", 1, 40960),
    ("mixtral-8x7b", "a100-sxm4-40gb", 2, 32768),
]


def ask(name, gpu, gpus, context):
    model, card = load_model(name), find(gpu)
    workload = Serving(context=context)
    plan = Plan(pools=(Pool(layout=Layout(tp=gpus), options=ServeOptions(context=context)),))

    def evaluate(changed, changed_model):
        cluster = Cluster.of(card, int(changed.pool.layout.gpus))
        return estimate(Question(model=changed_model, cluster=cluster, workload=workload, plan=changed))

    failing = evaluate(plan, model)
    assert not failing.fits
    found = remedies(evaluate, failing.question, gpus=gpus, failing=failing)
    return model, evaluate, found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[3]}")
def test_each_command_fits_when_fed_back(case):
    model, evaluate, found = ask(*case)
    assert len(found) == 3
    assert [one.cost_rank for one in found] == sorted(one.cost_rank for one in found)
    for remedy in found:
        words = shlex.split(remedy.flags)
        command = engines.get("vllm").read(words)
        scheme = words[2].rpartition("-")[2] if words[2].startswith("./") else None
        on_load = command.plan.pool.options.quantization
        run = requantize(model, scheme or on_load) if scheme or on_load else model
        assert evaluate(command.plan, run).fits, remedy.flags


def test_deepseek_r1_on_eight_h100_needs_fewer_bits_or_more_gpus():
    _, _, found = ask("deepseek-r1", "h100-sxm", 8, 163840)
    assert any("converted to awq" in one.change for one in found)
    assert any(one.change.startswith("16 GPUs") for one in found)
    assert "lower" in found[0].quality or found[0].quality == "unchanged"


def test_a_shorter_context_is_told_before_quantisation():
    _, _, found = ask("llama-3.1-70b", "h100-sxm", 2, 131072)
    assert found[0].change.startswith("context of ")
    assert found[0].quality.startswith("answers unchanged, requests beyond ")


def test_a_context_that_the_load_needs_is_never_cut():
    answer = nearest_miss(
        load_model("qwen3-32b"),
        Cluster.of(find("rtx-4090"), 1),
        Serving(isl=30000, osl=2000),
        fixed=Constraints(),
        engine=EngineRef(),
    )
    assert answer.remedies
    assert not any("context of" in one.change for one in answer.remedies)
