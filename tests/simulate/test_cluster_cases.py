"""Cases that operators met: topology that does not fit, gaps filled the wrong way, sockets, leaf groups, quotas."""

from __future__ import annotations

import pytest
from clusters import job, simulated, spans, waits

from trilemma.errors import InputError
from trilemma.simulation.cluster.nodes import ClusterNode
from trilemma.simulation.cluster.quotas import QueueQuota


@pytest.mark.parametrize("policy", ["kueue", "first-fit", "backfill", "kai"])
def test_nobody_is_thrown_out_for_a_job_that_then_does_not_fit(policy: str) -> None:
    """kubernetes-sigs/kueue#5243: four nodes of eight, six cards of each with jobs of high priority and two with low ones. A
    high job of eight cards fits by count once the low ones left, and on no node: nobody leaves, and one of one card gets in."""
    nodes = [ClusterNode(name=f"n{at}", gpus=8) for at in range(4)]
    high = [job(f"high-{at}", 6, None, priority=10, preemptible=False) for at in range(4)]
    low = [job(f"low-{at}", 2, None, at_s=1, priority=1) for at in range(4)]
    whole = job("whole", 8, 100, at_s=2, priority=10)
    queue = [QueueQuota(name="q", nominal=32_000, within="lower-priority")]
    jobs = [*high, *low, whole]
    jobs = [one if policy in ("first-fit", "backfill") else _in_queue(one) for one in jobs]
    run, found = simulated(nodes, jobs, policy, yields=True, queues=queue if policy in ("kueue", "kai") else ())
    assert found.preemptions == 0
    assert waits(run)["whole"] is None
    one = job("one", 1, 50, at_s=3, priority=10)
    jobs.append(one if policy in ("first-fit", "backfill") else _in_queue(one))
    run, found = simulated(nodes, jobs, policy, yields=True, queues=queue if policy in ("kueue", "kai") else ())
    if policy != "backfill":
        assert waits(run)["one"] == 0
        assert found.preemptions == 1
    assert waits(run)["whole"] is None


def _in_queue(one):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(one, queue="q")


def test_gaps_are_filled_first() -> None:
    """kubernetes-sigs/kueue#4474: nodes with 2, 1 and 1 cards; two pods of one card, then one pod of two: both run where the
    least room is taken first, only the first where the gang goes to the node that holds it."""
    nodes = [ClusterNode(name="x1", gpus=2), ClusterNode(name="x2", gpus=1), ClusterNode(name="x3", gpus=1)]
    jobs = [job("a", 1, None, pods=2), job("b", 2, None, at_s=1)]
    run, _ = simulated(nodes, jobs, "kueue")
    assert waits(run) == {"a": 0, "b": 0}
    assert spans(run) == {"a": 2, "b": 1}
    packed, found = simulated(nodes, jobs, "kueue", placement="tightest")
    assert waits(packed) == {"a": 0, "b": None}
    assert found.unstarted == 1


def test_a_pod_takes_its_cards_from_one_socket() -> None:
    """pytorch/ci-infra#696: two sockets of four cards under single-numa-node. Cards free on both sockets are no four on one."""
    node = ClusterNode(name="p5", gpus=8, sockets=2, one_socket=True)
    small = [job("three", 3, None), job("other", 3, 100, at_s=1), job("two", 2, 10, at_s=2)]
    run, _ = simulated([node], small)
    assert waits(run) == {"three": 0, "other": 0, "two": 99}
    ones = [job(f"one-{at}", 1, None) for at in range(4)]
    packed, _ = simulated([node], [*ones, job("four", 4, None, at_s=1)])
    assert waits(packed)["four"] == 0
    with pytest.raises(InputError, match="asks for 8 GPUs, more than the whole cluster can place"):
        simulated([node], [job("eight", 8)])


def test_free_hosts_are_no_free_leaf_group() -> None:
    """marin-community/marin#6950: 64 hosts in leaf groups of these sizes; gangs of eight hosts that have to share a leaf group
    run on two of them only, though 48 hosts stay free."""
    sizes = (1, 1, 2, 2, 2, 3, 3, 3, 5, 5, 6, 6, 6, 8, 11)
    nodes = [
        ClusterNode(name=f"h{group}-{at}", gpus=8, leaf=f"leaf{group}")
        for group, size in enumerate(sizes)
        for at in range(size)
    ]
    assert len(nodes) == 64
    gangs = [job(f"g{at}", 8, None, pods=8, at_s=at, within="leaf", strict=True) for at in range(3)]
    run, found = simulated(nodes, gangs, "kueue")
    assert waits(run) == {"g0": 0, "g1": 0, "g2": None}
    assert {one.span for one in run.runs[:2]} == {"leaf"}
    assert found.unstarted == 1
    loose = [job(f"g{at}", 8, None, pods=8, at_s=at, within="leaf") for at in range(8)]
    run, _ = simulated(nodes, loose, "kueue")
    assert all(wait == 0 for wait in waits(run).values())


def queues(**more: object) -> list[QueueQuota]:
    rest: dict[str, object] = {"parent": "all", "reclaim": "any", "within": "lower-priority", **more}
    return [QueueQuota(name=name, nominal=8_000, **rest) for name in ("a", "b")]  # type: ignore[arg-type]


def test_a_queue_borrows_what_its_cohort_leaves_and_gives_it_back() -> None:
    jobs = [job("a1", 8, 100, queue="a"), job("a2", 8, 100, at_s=1, queue="a"), job("b1", 8, 10, at_s=50, queue="b")]
    run, found = simulated(2, jobs, "kueue", queues=queues())
    assert waits(run) == {"a1": 0, "a2": 0, "b1": 0}
    assert found.preemptions == 1
    assert run.runs[1].preemptions == 1
    kept, found = simulated(2, jobs, "kueue", queues=queues(reclaim="never"))
    assert (waits(kept)["b1"], found.preemptions) == (50, 0)


def test_borrowing_and_lending_have_limits() -> None:
    jobs = [job("a1", 8, 100, queue="a"), job("a2", 4, 100, at_s=1, queue="a")]
    assert waits(simulated(2, jobs, "kueue", queues=queues(borrowing=4_000))[0])["a2"] == 0
    assert waits(simulated(2, jobs, "kueue", queues=queues(borrowing=3_000, reclaim="any"))[0])["a2"] == 99
    assert waits(simulated(2, jobs, "kueue", queues=queues(lending=3_000))[0])["a2"] == 99
    with pytest.raises(InputError, match="queue a may have 12; raise its quota or its borrowing"):
        simulated(2, [job("a", 8, 1, pods=2, queue="a")], "kueue", queues=queues(borrowing=4_000))


def test_priority_within_a_queue_takes_the_latest_of_the_lowest() -> None:
    jobs = [
        job("old", 4, 100, queue="a"), job("new", 4, 100, at_s=1, queue="a"), job("urgent", 4, 10, at_s=5, priority=5, queue="a"),
    ]  # fmt: skip
    run, _ = simulated(1, jobs, "kueue", queues=queues()[:1])
    assert [one.preemptions for one in run.runs] == [0, 1, 0]
    assert waits(run)["urgent"] == 0


def test_fair_shares_go_by_weight_beyond_what_is_deserved() -> None:
    """Twelve nodes' cards: each deserves two nodes, the rest 3 to 1."""
    many = [job(f"{queue}{at}", 8, None, queue=queue) for at in range(12) for queue in ("a", "b")]
    two = [QueueQuota(name="a", nominal=16_000, weight=3), QueueQuota(name="b", nominal=16_000, weight=1)]
    run, _ = simulated(12, many, "kai", queues=two)
    assert [run.quotas.nodes[name].used for name in "ab"] == [64_000, 32_000]


def test_a_queue_below_its_share_reclaims() -> None:
    greedy = [job(f"a{at}", 8, None, queue="a") for at in range(4)]
    later = [job(f"b{at}", 8, None, at_s=10, queue="b") for at in range(4)]
    two = [QueueQuota(name=name, nominal=8_000) for name in "ab"]
    run, found = simulated(4, [*greedy, *later], "kai", queues=two)
    assert [run.quotas.nodes[name].used for name in "ab"] == [16_000, 16_000]
    assert found.preemptions == 2
