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
from trilemma.timing.training_collectives import Fabric
from trilemma.timing.training_loads import training_loads
from trilemma.timing.training_operators import training_work
from trilemma.timing.training_step import training_step
from trilemma.workloads import TrainingWorkload

RUN = (
    "fit qwen3-30b-a3b --gpu h100-sxm:16 --train 4096 --global-batch 1024 --micro-batch 1 --ep 16 --precision bf16-bf16-grads"
    " --json"
)


def test_a_mixture_over_two_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-30B-A3B, EP16 on 16 H100 (NVIDIA-NeMo/Megatron-Bridge pull 3880): 42.21 s a step under all-to-all, 20.15 s under
    HybridEP and graphs. No fit saw it: both are told a third too slow (docs/accuracy.md), one over the other within a fifth."""
    told = []
    for said, measured in (("alltoall", 42.21), ("hybridep --cuda-graphs", 20.15)):
        main(shlex.split(f"{RUN} --dispatcher {said}"))
        told.append(json.loads(capsys.readouterr().out)["speed"]["step_s"]["value"])
        assert told[-1] == pytest.approx(measured, rel=0.5)
    assert told[0] / told[1] == pytest.approx(42.21 / 20.15, rel=0.2)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "moonlight-16b-a3b"])
def test_what_is_stated_orders_the_exchange(name: str) -> None:
    plan = TrainingPlan(layout=Layout(dp=16, ep=16))
    cluster, load = Cluster.of(find("h200-sxm"), 16), TrainingWorkload(seq=4096, global_batch=256)
    ways = (None, "alltoall", "padded", "deepep", "hybridep")
    seconds, launches = {}, {}
    for way in ways:
        lines = training_step(load_model(name), cluster, replace(plan, dispatcher=way), load).lines
        seconds[way], launches[way] = float(lines["expert_exchange"]), float(lines["launches"])
    assert seconds["alltoall"] == seconds[None] == seconds["padded"] > seconds["deepep"] > seconds["hybridep"] > 0
    assert launches["alltoall"] == launches["deepep"] > launches["padded"] == launches["hybridep"] > 0


def test_all_to_all_sends_every_copy_over_the_network() -> None:
    """Over 8 nodes of one H100 7/8 of 8 copies leave; DeepEP's reach 8·(1 − (7/8)^8) domains, 7/8 of them others."""
    work = training_work(load_model("qwen3-30b-a3b"))
    plan, load = TrainingPlan(layout=Layout(dp=8, ep=8), micro_batch=1), TrainingWorkload(seq=4096, global_batch=8)
    fabric = Fabric.of(Cluster.of(find("h100-sxm"), 8, gpus_per_node=1))
    copies = 4096 * 8 * 2048 * 2 * 48
    sent = {way: float(training_loads(work, replace(plan, dispatcher=way), load, fabric).experts_exchange[1])
            for way in ("alltoall", "deepep")}  # fmt: skip
    assert sent["alltoall"] == pytest.approx(copies * 7 / 8)
    assert sent["deepep"] == pytest.approx(copies / 8 * 8 * (1 - (7 / 8) ** 8) * 7 / 8)


def test_what_graphs_hold() -> None:
    """Graphs of layers hold a dense model whole, of a mixture what stands beside its experts unless buffers are padded."""
    cluster, load = Cluster.of(find("gb200"), 8), TrainingWorkload(seq=4096, global_batch=64)

    def gaps(name: str, **choices: object) -> float:
        plan = TrainingPlan(layout=Layout(dp=8, ep=8 if name.startswith("qwen3-30b") else 1), **choices)  # type: ignore[arg-type]
        return float(training_step(load_model(name), cluster, plan, load).lines["launches"])

    dense = gaps("llama-3.1-8b")
    assert (
        gaps("llama-3.1-8b", cuda_graphs=True) == gaps("llama-3.1-8b", cuda_graphs=True, step_graph=True) < 0.4 * dense
    )
    name = "qwen3-30b-a3b"
    whole = gaps(name, dispatcher="hybridep", cuda_graphs=True, step_graph=True)
    assert whole < 0.4 * gaps(name, dispatcher="hybridep", cuda_graphs=True)
    assert gaps(name, dispatcher="padded", cuda_graphs=True) == whole


def test_the_exchange_hides_beside_other_work() -> None:
    cluster, load = Cluster.of(find("gb200"), 64), TrainingWorkload(seq=4096, global_batch=1024)
    plan = TrainingPlan(layout=Layout(dp=64, ep=64), dispatcher="hybridep")
    model = load_model("qwen3-30b-a3b")
    plain, beside = (training_step(model, cluster, replace(plan, overlap_expert=way), load) for way in (False, True))
    assert beside.lines["expert_exchange"] < 0.5 * plain.lines["expert_exchange"]
    total = beside.lines["expert_exchange"] + beside.hidden["expert_exchange"]
    assert total == pytest.approx(plain.lines["expert_exchange"])


def test_long_kernels_hide_what_the_host_issues() -> None:
    """Four times the tokens a micro-batch take less than four times as long: what the host issues for a mixture's layers lasts as
    long as before and lies beside four times the work. Of a dense model a gap follows each kernel, however long it was."""

    def gaps(name: str, size: int) -> float:
        plan = TrainingPlan(layout=Layout(dp=8, ep=8 if name.startswith("qwen3-30b") else 1), micro_batch=size)
        cluster, load = Cluster.of(find("h100-sxm"), 8), TrainingWorkload(seq=4096, global_batch=8 * size)
        return float(training_step(load_model(name), cluster, plan, load).lines["launches"])

    assert 0 < gaps("qwen3-30b-a3b", 4) < 0.8 * gaps("qwen3-30b-a3b", 1)
    assert gaps("llama-3.1-8b", 4) == pytest.approx(gaps("llama-3.1-8b", 1), rel=1e-3)


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


@pytest.mark.parametrize("switches", [
    {"dispatcher": "padded"},
    {"dispatcher": "hybridep", "cuda_graphs": True, "step_graph": True, "overlap_expert": True, "fused_experts": True},
])  # fmt: skip
def test_megatron_reads_what_it_writes_of_switches(switches: dict[str, object]) -> None:
    plan = TrainingPlan(layout=Layout(dp=8, ep=8), expert_tp=1, **switches)  # type: ignore[arg-type]
    words = write(model=load_model("qwen3-30b-a3b"), plan=plan, workload=TrainingWorkload(seq=4096, global_batch=64))
    again = read_training("megatron", ["torchrun", "--nproc_per_node", "8", "pretrain_gpt.py", *words], gpus=8).plan
    names = ("dispatcher", "cuda_graphs", "step_graph", "overlap_expert", "fused_experts")
    assert [getattr(again, name) for name in names] == [getattr(plan, name) for name in names]
