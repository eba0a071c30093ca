"""Slices of cards go where their hardware lets them, and nowhere else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from clusters import simulated, waits

import trilemma as tl
from trilemma.data.files import read_data
from trilemma.errors import InputError
from trilemma.simulation.cluster.event_loop import ClusterRun
from trilemma.simulation.cluster.jobs import ClusterJob
from trilemma.simulation.cluster.mig import room_of, slice_shape, slice_shapes, start_of
from trilemma.simulation.cluster.nodes import ClusterNode, uniform_nodes
from trilemma.simulation.cluster.tables import JobDefaults, read_jobs

H100 = [ClusterNode(name="n0", gpus=1, model="NVIDIA H100 80GB HBM3")]


def jobs_of(folder: Path, rows: str, nodes: list[ClusterNode]) -> list[ClusterJob]:
    path = folder / "jobs.csv"
    path.write_text("job,submit_s,duration_s,instances,mig,gpu_milli\n" + rows)
    return read_jobs(path, nodes, JobDefaults())


def overlaps(run: ClusterRun) -> bool:
    """Whether two instances ever held the same slice of a card, or shared a card with what is no instance."""
    stretches = [stretch for one in run.runs for stretch in one.stretches]
    for begin, _, _ in stretches:
        held: dict[tuple[int, int], int] = {}
        kinds: dict[tuple[int, int], set[bool]] = {}
        for start, stop, placed in stretches:
            if start <= begin < stop:
                for pod in placed:
                    key = pod.node, pod.cards[0]
                    kinds.setdefault(key, set()).add(bool(pod.slices))
                    if held.get(key, 0) & pod.slices:
                        return True
                    held[key] = held.get(key, 0) | pod.slices
        if any(len(kind) > 1 for kind in kinds.values()):
            return True
    return False


def test_instances_of_a_card_are_as_many_as_the_guide_says() -> None:
    """Supported MIG profiles of H100 80GB: 7, 4, 3, 2, 1 and 1 instances; H200 and B200 by the same places."""
    names = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    shapes = [slice_shape(name, ["h100-sxm5-80gb"]) for name in names]
    assert [int(room_of(one.memory, one.starts)[0]) for one in shapes] == [7, 4, 3, 2, 1, 1]
    assert slice_shape("3g.71gb", ["NVIDIA H200"]) == slice_shape("3g.90gb", ["b200-sxm-180gb"]) == shapes[3]
    assert len(slice_shapes()) == len(read_data("simulation/mig_profiles.toml")["family"][0]["profiles"])


def test_no_start_leaves_the_slices() -> None:
    for one in slice_shapes():
        bits = 2**one.memory - 1
        for taken in range(256):
            start = int(start_of(one.memory, one.starts)[taken])
            assert (start >= 0) == (room_of(one.memory, one.starts)[taken] > 0)
            assert start < 0 or (start + one.memory <= 8 and not taken & bits << start)


def test_half_a_card_leaves_the_place_of_the_other_half(tmp_path: Path) -> None:
    """4g begins at 0 alone: 3g is put at 4, and both go."""
    run, _ = simulated(H100, jobs_of(tmp_path, "a,0,100,1,3g.40gb,\nb,1,100,1,4g.40gb,\nc,2,100,1,1g.10gb,\n", H100))
    assert waits(run) == {"a": 0, "b": 0, "c": 98}


def test_seven_small_ones_are_a_card_though_an_eighth_is_free(tmp_path: Path) -> None:
    run, found = simulated(H100, jobs_of(tmp_path, "a,0,100,7,1g.10gb,\nb,1,100,1,1g.10gb,\n", H100))
    assert waits(run) == {"a": 0, "b": 99}
    assert found.gpu_hours.fragmented == pytest.approx(99 / 8 / 3600)


def test_shares_and_slices_keep_to_their_own_cards(tmp_path: Path) -> None:
    run, _ = simulated(H100, jobs_of(tmp_path, "a,0,100,1,1g.10gb,\nb,1,100,1,,500\nc,101,100,1,1g.10gb,\n", H100))
    assert waits(run) == {"a": 0, "b": 99, "c": 99}


@pytest.mark.parametrize("policy", ["fifo", "backfill", "first-fit", "random", "best-fit", "packing", "fgd", "kueue"])
def test_no_slice_is_given_twice(tmp_path: Path, policy: str) -> None:
    rng = random.Random(5)
    nodes = [ClusterNode(name=f"n{at}", gpus=3, model="H100-SXM5-80GB") for at in range(2)]
    profiles = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", ""]
    rows = "".join(
        f"j{at},{rng.uniform(0, 200):.0f},{rng.uniform(5, 60):.0f},{rng.choice([1, 1, 2])},{rng.choice(profiles)},"
        f"{rng.choice([250, 500, 1000])}\n"
        for at in range(150)
    )
    run, found = simulated(nodes, jobs_of(tmp_path, rows, nodes), policy)
    assert found.completed == 150
    assert not overlaps(run)
    assert run.book.total() == run.book.capacity * run.book.at_ticks
    assert not run.state.sliced.any()
    assert run.state.instances == 0


@pytest.mark.parametrize(
    ("row", "model", "message"),
    [
        ("a,0,1,1,5g.50gb,\n", "h100-sxm5-80gb", r"jobs.csv line 2: mig '5g.50gb' is no profile; use 1g.10gb"),
        ("a,0,1,1,3g.71gb,\n", "h100-sxm5-80gb", r"mig 3g.71gb is no profile of nvidia-h100-sxm5-80gb"),
        ("a,0,1,1,1g.10gb,\n", "", r"mig 1g.10gb is of several sizes by the card; name the cards"),
    ],
)
def test_profiles_that_a_card_has_not_are_refused(tmp_path: Path, row: str, model: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        jobs_of(tmp_path, row, uniform_nodes(1, 8, model=model))


def test_nodes_without_names_take_the_cards_that_are_stated(tmp_path: Path) -> None:
    """1g.10gb is an eighth of an A100 of 80 GB, and a quarter of a card of 40 GB."""
    path = tmp_path / "jobs.csv"
    path.write_text("job,submit_s,duration_s,gpus,mig\n" + "".join(f"j{at},0,3600,1,1g.10gb\n" for at in range(7)))
    with pytest.raises(InputError, match="of several sizes by the card"):
        tl.simulate_cluster("1x1", str(path))
    found = tl.simulate_cluster("1x1", str(path), gpu="a100-sxm4-80gb")
    assert "7 done in 60.0 min" in str(found)
    with pytest.raises(InputError, match="is no profile of nvidia-l40s"):
        tl.simulate_cluster("1x1", str(path), gpu="l40s")
