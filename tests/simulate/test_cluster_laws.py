"""What holds of every cluster, workload and policy: nothing lost or counted twice, no card given twice, no gang split."""

from __future__ import annotations

import random

import pytest
from clusters import job, simulated, spans, waits

from trilemma.simulation.cluster.event_loop import ClusterRun, NodeFailures, RunRules
from trilemma.simulation.cluster.jobs import TICKS, ClusterJob
from trilemma.simulation.cluster.nodes import uniform_nodes
from trilemma.simulation.cluster.simulation import POLICIES

#: HiveD's jobs need cells, and what was observed is no policy: their own tests.
POLICIES_ALIKE = sorted(set(POLICIES) - {"hived", "observed"})
CHECKPOINT_S, RESTART_S = 30.0, 7.0


def workload(seed: int, many: int = 120) -> list[ClusterJob]:
    rng = random.Random(seed)
    jobs = []
    for at in range(many):
        kind = rng.random()
        shape = (
            {"gpu_milli": rng.choice([250, 500]), "gpus": 1} if kind < 0.2
            else {"pods": rng.choice([2, 3]), "gpus": rng.choice([2, 8])} if kind < 0.35
            else {"gpus": rng.choice([1, 1, 2, 4, 8])}
        )  # fmt: skip
        jobs.append(
            job(f"j{at}", work_s=rng.uniform(1, 200), at_s=rng.uniform(0, 300), priority=rng.randrange(3),
                checkpoint_s=CHECKPOINT_S, restart_s=RESTART_S, **shape)
        )  # fmt: skip
    return jobs


def failing(seed: int) -> RunRules:
    return RunRules(failures=NodeFailures(mtbf_ticks=400 * TICKS, repair_ticks=40 * TICKS, seed=seed))


def no_card_twice(run: ClusterRun) -> None:
    """At every beginning of a stretch the cards in use hold no more than themselves."""
    stretches = [one for each in run.runs for one in each.stretches]
    for begin, _, _ in stretches:
        held: dict[tuple[int, int], int] = {}
        for start, stop, placed in stretches:
            if start <= begin < stop:
                for pod in placed:
                    for card in pod.cards:
                        held[pod.node, card] = held.get((pod.node, card), 0) + pod.gpu_milli
        assert max(held.values(), default=0) <= 1000


@pytest.mark.parametrize("policy", POLICIES_ALIKE)
@pytest.mark.parametrize("seed", [1, 2])
def test_hours_by_state_are_capacity_times_time(policy: str, seed: int) -> None:
    run, found = simulated(4, workload(seed), policy, yields=True, rules=failing(seed), seed=seed)
    assert run.book.total() == run.book.capacity * run.book.at_ticks
    hours = found.gpu_hours
    assert hours.useful + hours.idle + hours.fragmented + hours.lost == pytest.approx(hours.capacity, rel=1e-12)
    done = sum(one.units * one.job.work_ticks for one in run.runs if one.finished is not None and one.job.work_ticks)
    assert found.completed == 120
    assert run.book.useful == done
    assert run.state.free_units == run.state.capacity_units
    assert (run.state.left[:, :8] == 1000).all()
    no_card_twice(run)


@pytest.mark.parametrize("policy", POLICIES_ALIKE)
def test_a_preemption_loses_at_most_a_checkpoint_and_a_restart(policy: str) -> None:
    run, found = simulated(3, workload(7), policy, yields=True)
    assert found.preemptions > 0
    assert found.worst_loss_s <= CHECKPOINT_S
    lost_units = sum(run.book.lost.values()) / TICKS
    most = sum(one.preemptions * one.units * (CHECKPOINT_S + RESTART_S) for one in run.runs)
    assert 0 < lost_units <= most


def test_without_checkpoints_all_is_done_again() -> None:
    low, high = job("low", 8, 100, restart_s=5), job("high", 8, 10, at_s=60, priority=1)
    run, found = simulated(1, [low, high], "fifo", yields=True)
    assert waits(run) == {"low": 0, "high": 0}
    assert run.runs[0].finished == (70 + 5 + 100) * TICKS
    assert found.gpu_hours.lost == pytest.approx(8 * (60 + 5) / 3600)


def test_a_checkpoint_keeps_what_stands() -> None:
    low, high = job("low", 8, 100, checkpoint_s=25, restart_s=5), job("high", 8, 10, at_s=60, priority=1)
    run, found = simulated(1, [low, high], "fifo", yields=True)
    assert run.runs[0].finished == (70 + 5 + 50) * TICKS
    assert found.gpu_hours.of_lost["preemption"] == pytest.approx(8 * (10 + 5) / 3600)


@pytest.mark.parametrize("policy", POLICIES_ALIKE)
def test_eight_gpus_are_not_split_while_a_node_is_free(policy: str) -> None:
    """Checked where it happens: whenever an 8-GPU job starts on two nodes, no node was free."""
    rng = random.Random(3)
    sizes = [1, 2, 4, 8]
    jobs = [
        job(f"j{at}", rng.choice(sizes), rng.uniform(5, 60), at_s=rng.uniform(0, 200), divisible=True)
        for at in range(150)
    ]
    run, _ = simulated(uniform_nodes(6, 8, per_rack=2), jobs, policy)
    split = 0
    stretches = [(one, *stretch) for one in run.runs for stretch in one.stretches]
    for one, begin, _, placed in stretches:
        if one.job.shape.gpus == 8 and len({pod.node for pod in placed}) > 1:
            split += 1
            mine = {pod.node for pod in placed}
            busy = {
                pod.node
                for other, start, stop, held in stretches
                if other is not one and start < begin < stop
                for pod in held
            }
            earlier = {
                pod.node
                for other, start, stop, held in stretches
                if start == begin and other is not one
                for pod in held
            }
            assert set(range(6)) <= busy | earlier, f"a node was free when {one.job.name} was split over {mine}"
    assert split or policy in ("fifo",)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (simulated(4, workload(5), "random", rules=failing(9), seed=4)[0] for _ in range(2))
    assert [one.finished for one in first.runs] == [one.finished for one in second.runs]


def test_failures_cost_what_stood_since_the_checkpoint_and_the_repair() -> None:
    run, found = simulated(
        2, [job(f"j{at}", 8, 2000, checkpoint_s=100, restart_s=10) for at in range(2)], rules=failing(1)
    )
    assert found.gpu_hours.of_lost["failure"] > 0
    assert found.gpu_hours.of_lost["down"] > 0
    assert run.book.total() == run.book.capacity * run.book.at_ticks
    assert found.worst_loss_s <= 100


def test_backfill_does_not_delay_the_head() -> None:
    """One node of eight: six are taken until 100 s; a job of eight waits, a short and a long one of two come after it."""
    jobs = [
        job("first", 6, 100), job("head", 8, 50, at_s=1), job("long", 2, 200, at_s=2), job("short", 2, 90, at_s=3),
    ]  # fmt: skip
    run, _ = simulated(1, jobs, "backfill")
    assert waits(run) == {"first": 0, "head": 99, "long": 148, "short": 0}
    strict, _ = simulated(1, jobs, "fifo")
    assert waits(strict) == {"first": 0, "head": 99, "long": 148, "short": 147}
    greedy, _ = simulated(1, jobs, "first-fit")
    assert waits(greedy) == {"first": 0, "head": 201, "long": 0, "short": 97}


def test_gangs_take_as_few_nodes_and_racks_as_hold_them() -> None:
    nodes = uniform_nodes(8, 8, per_rack=4)
    jobs = [job("small", 4, None), job("gang", 8, None, pods=4, at_s=1), job("next", 8, None, pods=3, at_s=2)]
    run, _ = simulated(nodes, jobs)
    assert spans(run) == {"small": 1, "gang": 4, "next": 3}
    assert {one.job.name: one.span for one in run.runs} == {"small": "node", "gang": "rack", "next": "rack"}


def test_elastic_jobs_start_smaller_and_take_longer() -> None:
    jobs = [job("other", 8, 1000, pods=1), job("elastic", 8, 100, pods=4, fewest_pods=1, at_s=1)]
    run, _ = simulated(3, jobs)
    assert run.runs[1].first_start == TICKS
    assert run.runs[1].finished == 201 * TICKS


def test_work_takes_longer_where_it_is_spread() -> None:
    nodes = uniform_nodes(4, 8, per_rack=2)
    rules = RunRules(slowdown={"rack": 1.1, "cluster": 1.5})
    run, found = simulated(nodes, [job("in", 8, 100, pods=2), job("over", 8, 100, pods=4, at_s=500)], rules=rules)
    assert [one.finished for one in run.runs] == [110 * TICKS, 650 * TICKS]
    assert run.book.total() == run.book.capacity * run.book.at_ticks
    assert found.completed == 2
