"""HiveD's feature scenarios: microsoft/hivedscheduler at 66f26ac, example/feature (README.md, hived-config-*, itc-*.yaml)."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import job, simulated, waits

from trilemma.errors import InputError
from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import ClusterJob
from trilemma.simulation.cluster.outcome import PolicyOutcome
from trilemma.simulation.cluster.virtual_cells import CellCluster, read_cells

TYPES = """
  cellTypes:
    K80-2GPU: {childCellType: K80, childCellNumber: 2}
    K80-NODE: {childCellType: K80-2GPU, childCellNumber: 2, isNodeLevel: true}
    M60-2GPU: {childCellType: M60, childCellNumber: 2}
    M60-NODE: {childCellType: M60-2GPU, childCellNumber: 2, isNodeLevel: true}
    2-K80-NODE: {childCellType: K80-NODE, childCellNumber: 2}
    3-K80-NODE: {childCellType: K80-NODE, childCellNumber: 3}
    K80-NODE-POOL: {childCellType: K80-NODE, childCellNumber: 4}
    M60-NODE-POOL: {childCellType: M60-NODE, childCellNumber: 1}
"""
CONFIG_1 = f"""
physicalCluster:{TYPES}
  physicalCells:
  - cellType: 3-K80-NODE
    cellChildren: [{{cellAddress: n19}}, {{cellAddress: n25, pinnedCellId: VC2-K80}}, {{cellAddress: n26}}]
  - cellType: 2-K80-NODE
    cellChildren: [{{cellAddress: n23}}, {{cellAddress: n24}}]
virtualClusters:
  vc1: {{virtualCells: [{{cellType: 3-K80-NODE.K80-NODE, cellNumber: 1}}]}}
  vc2: {{virtualCells: [{{cellType: 3-K80-NODE.K80-NODE, cellNumber: 1}}], pinnedCells: [{{pinnedCellId: VC2-K80}}]}}
  default: {{virtualCells: [{{cellType: 2-K80-NODE, cellNumber: 1}}]}}
"""
CONFIG_2 = f"""
physicalCluster:{TYPES}
  physicalCells:
  - cellType: K80-NODE-POOL
    cellChildren: [{{cellAddress: n18}}, {{cellAddress: n19}}, {{cellAddress: n23}}, {{cellAddress: n24}}]
  - cellType: M60-NODE-POOL
    cellChildren: [{{cellAddress: n26}}]
virtualClusters:
  vc1:
    virtualCells:
    - {{cellType: K80-NODE-POOL.K80-NODE, cellNumber: 1}}
    - {{cellType: M60-NODE-POOL.M60-NODE, cellNumber: 1}}
  default: {{virtualCells: [{{cellType: K80-NODE-POOL.K80-NODE, cellNumber: 2}}]}}
"""
CONFIG_3 = CONFIG_2.replace("cellNumber: 2}]", "cellNumber: 3}]")
K80, PROD, TEST, OPPO = {"models": ("K80",)}, {"priority": 100}, {"priority": 0}, {"priority": -1}


def cluster(tmp_path: Path, text: str) -> CellCluster:
    path = tmp_path / "hived.yaml"
    path.write_text(text)
    return read_cells(path)


def under(there: CellCluster, jobs: list[ClusterJob]) -> tuple[ClusterRun, PolicyOutcome]:
    return simulated(there.nodes, jobs, "hived", queues=there.queues, cells=there.cells)


def where(run: ClusterRun, name: str) -> list[str]:
    one = next(one for one in run.runs if one.job.name == name)
    return [run.state.nodes[pod.node].name for pod in (one.placed or one.stretches[-1][2])]


def test_a_configuration_states_nodes_and_cells(tmp_path: Path) -> None:
    there = cluster(tmp_path, CONFIG_1)
    assert [(one.name, one.gpus, one.model, one.buddies) for one in there.nodes] == [
        (name, 4, "K80", 2) for name in ("n19", "n25", "n26", "n23", "n24")
    ]
    assert [(one.queue, one.nodes, one.count, one.pinned) for one in there.cells] == [
        ("vc1", 1, 1, ""), ("vc2", 1, 1, ""), ("vc2", 1, 1, "n25"), ("default", 2, 1, ""),
    ]  # fmt: skip


def test_safety_jobs_of_one_queue_share_its_node(tmp_path: Path) -> None:
    """itc-safety-1 and -2: two jobs of two single cards each all run within one node, and not the pinned one."""
    jobs = [job(f"itc-safety-{at}", 1, None, pods=2, at_s=at, queue="vc1", **K80, **PROD) for at in (1, 2)]
    run, _ = under(cluster(tmp_path, CONFIG_1), jobs)
    nodes = {*where(run, "itc-safety-1"), *where(run, "itc-safety-2")}
    assert len(nodes) == 1
    assert nodes <= {"n19", "n26"}


def test_gang_waits_and_does_not_hold_up_what_fits(tmp_path: Path) -> None:
    """itc-gang: six single cards in a queue of four K80 wait whole; itc-gang4 behind it runs."""
    jobs = [
        job("itc-gang", 1, 600, pods=6, queue="vc1", **K80, **PROD),
        job("itc-gang4", 1, 600, pods=4, at_s=1, queue="vc1", **K80, **PROD),
    ]
    run, found = under(cluster(tmp_path, CONFIG_2), jobs)
    assert waits(run) == {"itc-gang": None, "itc-gang4": 0}
    assert found.unstarted == 1


def test_buddies(tmp_path: Path) -> None:
    """itc-buddy: two single cards of one gang are buddies, though a card of the first pair is free."""
    jobs = [
        job("alone", 1, None, queue="vc1", **K80, **PROD),
        job("itc-buddy", 1, None, pods=2, at_s=1, queue="vc1", **K80, **PROD),
    ]
    run, _ = under(cluster(tmp_path, CONFIG_2), jobs)
    assert {card // 2 for pod in run.runs[0].placed for card in pod.cards} == {0}
    assert {card // 2 for pod in run.runs[1].placed for card in pod.cards} == {1}
    assert len({pod.node for one in run.runs for pod in one.placed}) == 1


def test_card_types(tmp_path: Path) -> None:
    """itc-k80-type: four of six pods that name the K80 run; itc-no-type: all six, on K80 and M60."""
    there = cluster(tmp_path, CONFIG_2)
    typed = [job(f"k80-{at}", 1, None, queue="vc1", **K80, **PROD) for at in range(6)]
    run, _ = under(there, typed)
    assert sum(wait is not None for wait in waits(run).values()) == 4
    free = [job(f"any-{at}", 1, None, queue="vc1", **PROD) for at in range(6)]
    run, _ = under(there, free)
    assert all(wait == 0 for wait in waits(run).values())
    models = {run.state.nodes[pod.node].model for one in run.runs for pod in one.placed}
    assert models == {"K80", "M60"}


def test_guaranteed_jobs_stay_in_their_quota_and_opportunistic_ones_do_not(tmp_path: Path) -> None:
    """itc-elastic uses one node of vc1, itc-oppo more than one."""
    there = cluster(tmp_path, CONFIG_1)
    run, _ = under(there, [job(f"e{at}", 1, None, queue="vc1", **K80, **PROD) for at in range(6)])
    assert sum(wait is not None for wait in waits(run).values()) == 4
    assert len({where(run, f"e{at}")[0] for at in range(4)}) == 1
    run, _ = under(there, [job(f"o{at}", 1, None, queue="vc1", **K80, **OPPO) for at in range(6)])
    assert all(wait == 0 for wait in waits(run).values())
    assert len({where(run, f"o{at}")[0] for at in range(6)}) > 1


def test_immediate_preemption_within_a_queue(tmp_path: Path) -> None:
    """itc-intra-imd-preempt: prod throws out test at once; test waits."""
    m60 = {"models": ("M60",)}
    jobs = [job("test", 4, 600, queue="vc1", **m60, **TEST), job("prod", 4, 600, at_s=60, queue="vc1", **m60, **PROD)]
    run, found = under(cluster(tmp_path, CONFIG_3), jobs)
    assert waits(run) == {"test": 0, "prod": 0}
    assert found.preemptions == 1
    assert run.runs[0].finished == 1_260_000_000


def test_lazy_preemption_downgrades_while_all_fit(tmp_path: Path) -> None:
    """itc-intra-lazy-preempt: test goes on as an opportunistic job beside prod, until prod2 of another queue needs its node."""
    jobs = [
        job("test", 4, 600, queue="vc1", lazy=True, **K80, **TEST),
        job("prod", 4, 600, at_s=60, queue="vc1", **K80, **PROD),
    ]
    there = cluster(tmp_path, CONFIG_3)
    run, found = under(there, jobs)
    assert found.preemptions == 0
    assert waits(run) == {"test": 0, "prod": 0}
    assert where(run, "test") != where(run, "prod")
    prod2 = job("prod2", 4, 600, pods=3, at_s=120, queue="default", **K80, **PROD)
    run, found = under(there, [*jobs, prod2])
    assert waits(run)["prod2"] == 0
    assert [one.preemptions for one in run.runs] == [1, 0, 0]


def test_a_queue_takes_its_cells_back_from_opportunistic_jobs(tmp_path: Path) -> None:
    """itc-inter-preempt: eight cards of vc1's opportunistic job give way to twelve of default's."""
    jobs = [
        job("oppo", 4, 600, pods=2, queue="vc1", **K80, **OPPO),
        job("prod", 4, 600, pods=3, at_s=60, queue="default", **K80, **PROD),
    ]
    run, found = under(cluster(tmp_path, CONFIG_3), jobs)
    assert waits(run) == {"oppo": 0, "prod": 0}
    assert found.preemptions == 1
    assert run.book.total() == run.book.capacity * run.book.at_ticks


def test_bad_configurations_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no physicalCluster"):
        cluster(tmp_path, "a: 1")
    with pytest.raises(InputError, match="vc1 owns cells of type 'K81-NODE', which is not stated"):
        cluster(
            tmp_path, CONFIG_2.replace("K80-NODE-POOL.K80-NODE, cellNumber: 1", "K80-NODE-POOL.K81-NODE, cellNumber: 1")
        )
    with pytest.raises(InputError, match="go in a circle"):
        cluster(tmp_path, CONFIG_2.replace("childCellType: K80-2GPU", "childCellType: K80-NODE-POOL"))
    with pytest.raises(InputError, match="policy` hived needs cells"):
        simulated(2, [job("a")], "hived")
