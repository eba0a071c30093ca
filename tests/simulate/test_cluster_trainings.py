"""The speed of a job by its place is the estimator's: what `fit` says of the same cards, near to each other and spread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trilemma as tl
from trilemma.errors import InputError
from trilemma.simulation.cluster.nodes import ClusterNode, uniform_nodes
from trilemma.simulation.cluster.placed_speed import place_of
from trilemma.simulation.cluster.state import ClusterState, PlacedPod

TRAINING = {"train": 4096, "global_batch": 64, "tp": 4, "pp": 2}
TRAININGS = (
    "big: {model: llama-3.1-8b, train: 4096, global_batch: 64, tp: 4, pp: 2}\nseen: {pace: {cluster: 1.5}, mfu: 0.4}\n"
)


def simulated(folder: Path, jobs: str, nodes: str = "4x8:2", trainings: str = TRAININGS, **options: object):  # type: ignore[no-untyped-def]
    (folder / "jobs.csv").write_text(jobs)
    (folder / "trainings.yaml").write_text(trainings)
    return tl.simulate_cluster(
        nodes, folder / "jobs.csv", trainings=folder / "trainings.yaml", gpu="h100-sxm", policy="first-fit", **options
    )


def step_s(gpu: str, **options: object) -> float:
    speed = tl.fit("llama-3.1-8b", gpu, **{**TRAINING, **options}).speed  # type: ignore[arg-type]
    assert speed is not None
    assert speed.step_s is not None
    return speed.step_s.interval.value


def test_steps_take_what_fit_says_and_longer_over_a_narrow_core(tmp_path: Path) -> None:
    """Two racks of two nodes: 16 GPUs fit in a rack; 32 cross the core, which is eight times narrower."""
    jobs = "job,submit_s,gpus,training,steps\nnear,0,16,big,100\nwide,100000,32,big,100\n"
    found = simulated(tmp_path, jobs, oversubscription="cluster=8", per_job=tmp_path / "jobs.jsonl")
    assert found.outcome.completed == 2
    lines = (tmp_path / "jobs.jsonl").read_text()
    near, wide = (json.loads(one) for one in lines.splitlines())
    assert near["finish_s"] - near["start_s"] == pytest.approx(100 * step_s("h100-sxm:16"), rel=1e-6)
    assert wide["span"] == "cluster"
    spread = step_s("h100-sxm:32", oversubscription=8.0)
    assert spread > step_s("h100-sxm:32")
    assert wide["finish_s"] - wide["start_s"] == pytest.approx(100 * spread, rel=1e-6)


def test_a_job_split_over_nodes_takes_as_long_as_on_smaller_nodes(tmp_path: Path) -> None:
    """Two cards are free on each of two nodes: tensor parallelism of four talks over the network; four on
    one node are the measure."""
    jobs = "job,submit_s,duration_s,gpus,training,divisible\nx,0,9000,6,,\ny,1,9000,6,,\nz,2,1000,4,pairs,yes\n"
    pairs = "pairs: {model: llama-3.1-8b, train: 4096, global_batch: 64, tp: 4, pp: 1}\n"
    found = simulated(tmp_path, jobs, nodes="2x8", trainings=pairs, per_job=tmp_path / "jobs.jsonl")
    line = [json.loads(one) for one in (tmp_path / "jobs.jsonl").read_text().splitlines()][2]
    assert line["nodes"] == 2
    expected = step_s("h100-sxm:4", pp=1, nodes=2) / step_s("h100-sxm:4", pp=1)
    assert expected > 1.1
    assert (line["finish_s"] - line["start_s"]) / 1000 == pytest.approx(expected, rel=1e-6)
    assert found.efficiency[0].place_gain_gpu_hours == pytest.approx(4 * 1000 * (expected - 1) / 3600, rel=1e-4)


def test_the_use_of_the_cluster_is_weighed_by_the_use_of_the_cards(tmp_path: Path) -> None:
    """Half of the cluster at MFU 0.4 all the time: a fifth; spread 1.5 times slower than near, 0.4 / 1.5."""
    near = simulated(tmp_path, "job,submit_s,duration_s,gpus,training\na,0,1000,8,seen\n", nodes="2x8")
    assert near.outcome.allocated_share == pytest.approx(0.5)
    assert near.outcome.mfu_share == pytest.approx(0.2)
    spread = simulated(tmp_path, "job,submit_s,duration_s,gpus,training\na,0,1000,16,seen\n", nodes="2x8")
    assert spread.outcome.seconds_simulated == pytest.approx(1500)
    assert spread.outcome.mfu_share == pytest.approx(0.4 / 1.5)


def test_a_better_plan_is_told_with_what_it_gives_back(tmp_path: Path) -> None:
    bad = "bad: {model: llama-3.1-8b, train: 4096, global_batch: 64, tp: 8, pp: 1, recompute: full}\n"
    found = simulated(tmp_path, "job,submit_s,duration_s,gpus,training\na,0,3600,8,bad\n", nodes="1x8", trainings=bad)
    (group,) = found.efficiency
    assert group.best_mfu is not None
    assert group.nearest_mfu is not None
    assert group.best_mfu > group.nearest_mfu
    assert group.plan_gain_gpu_hours == pytest.approx(8 * (1 - group.nearest_mfu / group.best_mfu))
    assert group.best_layout in str(found)


def test_commands_are_timed_as_check_reads_them(tmp_path: Path) -> None:
    command = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008"
        " --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1"
        " --global-batch-size 64 --tensor-model-parallel-size 4 --bf16 --swiglu --vocab-size 32000"
    )
    found = simulated(tmp_path, f'job,submit_s,gpus,steps,command\na,0,8,10,"{command}"\n')
    speed = tl.check(command, "h100-sxm:8").speed
    assert speed is not None
    assert speed.step_s is not None
    assert found.outcome.seconds_simulated == pytest.approx(10 * speed.step_s.interval.value, rel=1e-6)


@pytest.mark.parametrize(
    ("jobs", "trainings", "message"),
    [
        ("job,submit_s,gpus,training,steps\na,0,6,big,10\n", TRAININGS, r"jobs.csv line 2: job a: training big on 6 GPUs: `tp`"),
        ("job,submit_s,gpus,training,steps\na,0,8,other,10\n", TRAININGS, r"jobs.csv line 2: job a states steps of 'other'"),
        ("job,submit_s,gpus,training,steps\na,0,8,seen,10\n", TRAININGS, r"jobs.csv line 2: job a states steps of 'seen'"),
        ("job,submit_s,gpus\na,0,8\n", "[1, 2]\n", r"trainings.yaml states no trainings"),
        ("job,submit_s,gpus\na,0,8\n", "x: {model: llama-3.1-8b, nodes: 2}\n", r"trainings.yaml: training x: `nodes` is the"),
        ("job,submit_s,gpus\na,0,8\n", "x: {pace: {moon: 2}}\n", r"training x: pace moon: 2 is not a level"),
        ("job,submit_s,gpus\na,0,8\n", "x: {mfu: 40}\n", r"training x: mfu 40 is out of range"),
        ("job,submit_s,gpus,training\na,0,8,x\n", "x: {model: llama-3.1-8b}\n", r"job a: training x on 8 GPUs: training needs"),
        ("job,submit_s,gpus,training\na,0,8,x\n", "x: {model: llama-3.1-8b, warp: 1}\n", r"training x on 8 GPUs: unknown option"),
    ],
)  # fmt: skip
def test_trainings_that_say_nothing_are_refused(tmp_path: Path, jobs: str, trainings: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulated(tmp_path, jobs, trainings=trainings)


def test_cards_that_nobody_names_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(TRAININGS)
    (tmp_path / "j.csv").write_text("job,submit_s,duration_s,gpus,training\na,0,10,8,big\n")
    with pytest.raises(InputError, match="the nodes do not name their cards; give `gpu`"):
        tl.simulate_cluster("2x8", tmp_path / "j.csv", trainings=tmp_path / "t.yaml")


def test_groups_of_ranks_lie_in_nodes_and_domains() -> None:
    nodes = [
        ClusterNode(name=f"n{at}", gpus=4, nvlink=f"d{at // 3}", rack="r") for at in range(6)
    ]  # fmt: skip
    state = ClusterState(nodes)
    placed = [PlacedPod(node, (0, 1, 2, 3), 1000, 0, 0) for node in (0, 1, 3, 4)]
    place = place_of(state, placed, "rack")
    assert (place.gpus, place.beside, place.linked) == (16, 4, 8)
    uneven = [PlacedPod(node, (0, 1, 2, 3), 1000, 0, 0) for node in (0, 1, 3)]
    assert place_of(state, uneven, "rack").linked == 4
    flat = ClusterState(uniform_nodes(2, 8))
    split = [PlacedPod(0, (0, 1, 2, 3, 4), 1000, 0, 0), PlacedPod(1, (0, 1, 2), 1000, 0, 0)]
    assert place_of(flat, split, "cluster").beside == 1
