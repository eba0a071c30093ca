"""A cluster filled to the brim: what fragmentation leaves, beside what was published of the same nodes and pods."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import trilemma as tl

#: Nodes and pods by kind with their counts: hkust-adsl/kubernetes-scheduler-simulator at 8f3d641, data/csv (Apache-2.0).
_DATA = Path(__file__).parent / "openb"
#: Percent of the GPUs allocated where the pods that came ask for all of them, mean of ten orders: the same repository,
#: experiments/analysis/expected_results/analysis_allo_discrete.csv, tune 1.3, seeds 42 to 51, column 100.
PUBLISHED = {
    ("default", "random"): 86.30,
    ("default", "packing"): 91.78,
    ("default", "best-fit"): 92.86,
    ("default", "fgd"): 95.23,
    ("multigpu30", "random"): 86.63,
    ("multigpu30", "packing"): 94.70,
    ("multigpu30", "best-fit"): 94.57,
    ("multigpu30", "fgd"): 96.36,
}


@pytest.fixture(scope="module")
def openb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables with a line a node and a line a pod, as they were published."""
    folder = tmp_path_factory.mktemp("openb")
    for table in _DATA.glob("*.csv"):
        with table.open() as read, (folder / table.name).open("w", newline="") as written:
            lines = None
            for kind, row in enumerate(csv.DictReader(read)):
                many = int(row.pop("many"))
                name = "sn" if table.stem == "nodes" else "name"
                stamp = {"creation_time": "0"} if table.stem == "pods_default" else {}
                if lines is None:
                    lines = csv.DictWriter(written, [name, *row, *stamp])
                    lines.writeheader()
                lines.writerows({name: f"{table.stem}-{kind}-{at}", **row, **stamp} for at in range(many))
    return folder


@pytest.mark.parametrize("workload", ["default", "multigpu30"])
def test_allocation_at_full_demand_is_as_published(openb: Path, workload: str) -> None:
    seeds = (42, 43)
    found: dict[str, list[float]] = {}
    for seed in seeds:
        run = tl.simulate_cluster(
            openb / "nodes.csv", openb / f"pods_{workload}.csv", policy="fgd", demand=1.3, seed=seed,
            compare="random,packing,best-fit", processes=1,
        )  # fmt: skip
        for one in (run.outcome, *run.compared):
            found.setdefault(one.name, []).append(100 * one.allocated_at_demand["100"])
    means = {name: sum(shares) / len(seeds) for name, shares in found.items()}
    for name, mean in means.items():
        assert mean == pytest.approx(PUBLISHED[workload, name], abs=0.7), name
    assert means["fgd"] > means["best-fit"] > means["random"]


def test_what_is_not_yet_asked_for_is_not_allocated(openb: Path) -> None:
    run = tl.simulate_cluster(openb / "nodes.csv", openb / "pods_default.csv", policy="best-fit", demand=0.5)
    assert run.outcome.unstarted == 0
    assert run.outcome.allocated_share == pytest.approx(0.5, abs=0.002)
    assert run.fits
