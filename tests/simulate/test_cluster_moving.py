"""Running jobs are moved, shrunk and grown only where another starts or ends sooner for it, and nothing is lost by it."""

from __future__ import annotations

import random

import pytest
from clusters import job, simulated, waits

from trilemma.simulation.cluster.event_loop import RunRules
from trilemma.simulation.cluster.jobs import TICKS, ClusterJob
from trilemma.simulation.cluster.nodes import uniform_nodes

MOVES, ELASTIC = RunRules(move_ticks=20 * TICKS), RunRules(resizes=True)


def apart(big_s: float = 500.0, **more: object) -> list[ClusterJob]:
    """Four cards are free on each of two nodes when a job of eight comes."""
    return [
        job("a", 4, 1000, restart_s=5, **more), job("short", 4, 10), job("b", 4, 1000, at_s=1, restart_s=5, **more),
        job("big", 8, big_s, at_s=11),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["fifo", "backfill", "first-fit", "kueue", "kai"])
def test_a_job_is_moved_where_that_makes_a_place(policy: str) -> None:
    stays, _ = simulated(2, apart(), policy)
    assert waits(stays)["big"] == 989
    run, found = simulated(2, apart(), policy, rules=MOVES)
    assert waits(run)["big"] == 0
    assert found.moves == 1
    ends = sorted(one.finished for one in run.runs if one.job.name in "ab" and one.finished)
    assert ends in ([1000 * TICKS, 1026 * TICKS], [1001 * TICKS, 1025 * TICKS])
    assert found.gpu_hours.of_lost["moving"] == pytest.approx(4 * 25 / 3600)
    assert found.preemptions == 0


def test_nobody_is_moved_for_less_than_it_costs() -> None:
    """Twenty-five seconds of four cards for one second of eight."""
    _, found = simulated(2, apart(big_s=1.0), rules=MOVES)
    assert found.moves == 0


def test_nobody_is_moved_who_may_not_be() -> None:
    _, found = simulated(2, apart(preemptible=False), rules=MOVES)
    assert found.moves == 0


def test_nobody_is_moved_where_the_other_finds_no_place() -> None:
    jobs = [job("a", 6, 1000), job("b", 6, 1000), job("c", 4, 500, at_s=5)]
    run, found = simulated(2, jobs, rules=MOVES)
    assert (found.moves, waits(run)["c"]) == (0, 995)


def test_an_elastic_job_shrinks_for_another_and_grows_again() -> None:
    """Four nodes for 100 s alone. At 50 s another takes one: two pods go on, half as fast; at 150 s it has all again."""
    jobs = [job("elastic", 8, 100, pods=4, fewest_pods=1), job("other", 8, 100, at_s=50)]
    run, found = simulated(4, jobs, rules=ELASTIC)
    assert waits(run) == {"elastic": 0, "other": 0}
    assert run.runs[0].finished == 150 * TICKS
    assert found.moves == 1
    longer = [job("elastic", 8, 200, pods=4, fewest_pods=1), job("other", 8, 100, at_s=50)]
    run, found = simulated(4, longer, rules=ELASTIC)
    assert run.runs[0].finished == 250 * TICKS
    assert [len(placed) for _, _, placed in run.runs[0].stretches] == [4, 2, 4]
    assert found.moves == 2


def test_growing_that_takes_longer_than_it_saves_is_left() -> None:
    jobs = [job("first", 8, 100), job("elastic", 8, 60, pods=2, fewest_pods=1, restart_s=30, at_s=1)]
    run, found = simulated(2, jobs, rules=ELASTIC)
    assert run.runs[1].finished == 121 * TICKS
    assert found.moves == 0


@pytest.mark.parametrize("policy", ["fifo", "backfill", "first-fit", "best-fit", "kueue", "kai"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_or_held_twice(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    jobs = []
    for at in range(150):
        shape = (
            {"pods": 4, "gpus": rng.choice([2, 8]), "fewest_pods": 1}
            if rng.random() < 0.3
            else {"gpus": rng.choice([1, 2, 4, 8])}
        )
        jobs.append(
            job(f"j{at}", work_s=rng.uniform(5, 300), at_s=rng.uniform(0, 900), restart_s=3, checkpoint_s=20.0, **shape)
        )  # fmt: skip
    rules = RunRules(move_ticks=5 * TICKS, resizes=True)
    run, found = simulated(uniform_nodes(5, 8, per_rack=2), jobs, policy, rules=rules)
    assert found.completed == 150
    assert found.moves > 0
    assert run.book.total() == run.book.capacity * run.book.at_ticks
    for one in run.runs:
        assert one.job.work_ticks is not None
        whole = one.job.work_ticks * one.job.shape.units(of_cpus=False)
        assert one.useful_units == pytest.approx(whole, rel=1e-6, abs=one.units_asked * 20)
    events = [(at, kind, pod) for one in run.runs for begin, end, placed in one.stretches for pod in placed
              for at, kind in ((end, 0), (begin, 1))]  # fmt: skip
    held: dict[tuple[int, int], int] = {}
    for _, kind, pod in sorted(events, key=lambda event: event[:2]):
        for card in pod.cards:
            held[pod.node, card] = held.get((pod.node, card), 0) + (1 if kind else -1)
            assert held[pod.node, card] <= 1
    assert run.state.free_units == run.state.capacity_units
