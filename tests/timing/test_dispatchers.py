"""How experts get their tokens, stated: all-to-all, DeepEP, HybridEP, and CUDA graphs."""

import json
import shlex
from dataclasses import replace

import pytest

from trilemma.cli.main import main
from trilemma.engines.megatron.write import write
from trilemma.engines.training import read_training
from trilemma.hardware.catalogue import find
from trilemma.hardware.cluster import Cluster
from trilemma.models.resolve import load_model
from trilemma.plans import Layout, TrainingPlan
from trilemma.timing.training_step import training_step
from trilemma.workloads import TrainingWorkload

RUN = (
    "fit qwen3-30b-a3b --gpu h100-sxm:16 --train 4096 --global-batch 1024 --micro-batch 1 --ep 16 --precision bf16-bf16-grads"
    " --json"
)


@pytest.mark.parametrize(
    ("said", "measured"), [("--dispatcher alltoall", 42.21), ("--dispatcher hybridep --cuda-graphs", 20.15)]
)
def test_a_mixture_over_two_nodes(said: str, measured: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-30B-A3B, EP16 on 16 H100 (NVIDIA-NeMo/Megatron-Bridge pull 3880)."""
    main(shlex.split(f"{RUN} {said}"))
    step = json.loads(capsys.readouterr().out)["speed"]["step_s"]
    assert step["low"] < measured < step["high"]
    assert step["value"] == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "moonlight-16b-a3b"])
def test_what_is_stated_orders_the_exchange(name: str) -> None:
    plan = TrainingPlan(layout=Layout(dp=16, ep=16))
    cluster, load = Cluster.of(find("h200-sxm"), 16), TrainingWorkload(seq=4096, global_batch=256)
    ways = (None, "alltoall", "deepep", "hybridep")
    seconds = {
        way: float(training_step(load_model(name), cluster, replace(plan, dispatcher=way), load).lines["expert_exchange"])
        for way in ways
    }  # fmt: skip
    assert seconds["alltoall"] > seconds[None] > seconds["deepep"] > seconds["hybridep"] > 0


def test_a_dense_model_has_none() -> None:
    plan, load = TrainingPlan(layout=Layout(dp=8)), TrainingWorkload(seq=4096, global_batch=64)
    cluster, model = Cluster.of(find("h100-sxm"), 8), load_model("llama-3.1-8b")
    plain, stated = (
        training_step(model, cluster, replace(plan, dispatcher=way), load).step_s for way in (None, "alltoall")
    )
    assert plain == stated
    graphs = training_step(model, cluster, replace(plan, cuda_graphs=True), load)
    assert graphs.step_s < plain


def test_megatron_reads_what_it_writes() -> None:
    plan = TrainingPlan(layout=Layout(dp=8, ep=8), dispatcher="hybridep", cuda_graphs=True, expert_tp=1)
    load = TrainingWorkload(seq=4096, global_batch=64)
    words = write(model=load_model("qwen3-30b-a3b"), plan=plan, workload=load)
    assert words.count("--moe-token-dispatcher-type") == 1
    again = read_training("megatron", ["torchrun", "--nproc_per_node", "8", "pretrain_gpt.py", *words], gpus=8).plan
    assert (again.dispatcher, again.cuda_graphs) == ("hybridep", True)
