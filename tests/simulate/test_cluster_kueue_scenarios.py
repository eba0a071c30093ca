"""Kueue's own performance scenarios on simulated time, held against what its rangespec.yaml files state of real runs.

kubernetes-sigs/kueue at ff69552e, test/performance/scheduler/configs/{baseline,tas}: minimalkueue writes 50 times a second, 100
at once (minimalkueue/main.go), and looks again at what did not fit after a second (requeueBatchPeriod).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import trilemma as tl
from trilemma.errors import InputError

RACK = "cloud.provider.com/topology-rack"
#: Class → how often, how far apart, how long (ms), its priority and its CPUs.
SIZES = {"small": (350, 100, 200, 50, 1), "medium": (100, 500, 500, 100, 5), "large": (50, 1200, 1000, 200, 20)}
PODS = {"small": ("500m", 2, 1), "medium": ("1250m", 4, 2), "large": ("2500m", 8, 4)}
SHARES = {"small": (120, 120, 110), "medium": (34, 33, 33), "large": (17, 17, 16)}


def scenario(tas: bool) -> dict[str, Any]:
    sets = []
    for name, (count, interval, runtime, priority, cpus) in SIZES.items():
        row = {"runtimeMs": runtime, "priority": priority}
        if not tas:
            plain = {"className": name, **row, "request": cpus}
            sets.append({"count": count, "creationIntervalMs": interval, "workloads": [plain]})
            continue
        request, pods, size = PODS[name]
        for kind, many in zip(("required", "preferred", "balanced"), SHARES[name], strict=True):
            one = {"className": f"{name}-{kind}-rack", **row, "request": request, "podCount": pods}
            one |= {"tasConstraint": kind, "tasLevel": RACK, **({"sliceSize": size} if kind == "balanced" else {})}
            sets.append({"count": many, "creationIntervalMs": interval, "workloads": [one]})
    queues = {
        "className": "cq", "count": 6, "nominalQuota": 20, "borrowingLimit": 100, "reclaimWithinCohort": "Any",
        "withinClusterQueue": "LowerPriority", "workloadsSets": sets,
    }  # fmt: skip
    levels = [
        {"name": "block", "count": 1, "nodeLabel": "cloud.provider.com/topology-block"},
        {"name": "rack", "count": 10, "nodeLabel": RACK},
        {
            "name": "node",
            "count": 64,
            "nodeLabel": "kubernetes.io/hostname",
            "capacity": {"cpu": "96", "memory": "256Gi"},
        },
    ]
    topology = {"topology": {"name": "default-topology", "levels": levels}} if tas else {}
    return {**topology, "cohorts": [{"className": "cohort", "count": 5, "queuesSets": [queues]}]}


def under(tmp_path: Path, tas: bool) -> tl.simulate_cluster:  # type: ignore[valid-type]
    path = tmp_path / "generator.yaml"
    path.write_text(yaml.safe_dump(scenario(tas)))
    found = tl.simulate_cluster(jobs=path, policy="kueue", control_plane="50:100")
    assert found.jobs == found.outcome.completed == 15_000
    return found


def use_of_quota(found: Any) -> float:
    """CPUs held, of the 600 that the queues own, in the mean."""
    hours = found.outcome.gpu_hours
    return (hours.useful + sum(hours.of_lost.values())) / (600 * found.outcome.seconds_simulated / 3600)


def test_baseline(tmp_path: Path) -> None:
    found = under(tmp_path, tas=False)
    waits = {name: found.outcome.waits_s[name]["mean"] for name in SIZES}
    assert found.outcome.seconds_simulated == pytest.approx(351.1, rel=0.03)  # 351,116 ms (+/- 0.9 %), at most 425
    assert use_of_quota(found) == pytest.approx(0.559, abs=0.01)  # 55.9 % (+/- 1.1 %), at least 50
    assert waits["small"] == pytest.approx(215.5, rel=0.06)  # +/- 2 %, at most 260
    assert waits["medium"] == pytest.approx(76.8, rel=0.05)  # +/- 2 %, at most 90
    assert waits["large"] < 23.0  # 16.5 (+/- 13 %)
    assert waits["large"] < waits["medium"] < waits["small"]


def test_topology_aware(tmp_path: Path) -> None:
    found = under(tmp_path, tas=True)
    #: The thresholds of the file, seconds.
    most = {
        "large-balanced-rack": 46, "large-preferred-rack": 48, "large-required-rack": 48, "medium-balanced-rack": 128,
        "medium-preferred-rack": 128, "medium-required-rack": 129, "small-balanced-rack": 286, "small-preferred-rack": 296,
        "small-required-rack": 297,
    }  # fmt: skip
    for name, bound in most.items():
        assert found.outcome.waits_s[name]["mean"] < bound, name
    assert found.outcome.seconds_simulated < 482
    assert use_of_quota(found) >= 0.57


def test_without_a_control_plane_the_quota_is_all_that_bounds(tmp_path: Path) -> None:
    path = tmp_path / "generator.yaml"
    path.write_text(yaml.safe_dump(scenario(tas=False)))
    found = tl.simulate_cluster(jobs=path, policy="kueue")
    assert found.outcome.seconds_simulated < 80  # 66 s of work at full use
    assert use_of_quota(found) > 0.85


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nominalQuota": "20x"}, "nominalQuota '20x' is no quantity, such as 20 or 500m"),
        ({"count": -1}, "count '-1' is not a whole number of 0 or more"),
    ],
)
def test_bad_scenarios_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    document = scenario(tas=False)
    document["cohorts"][0]["queuesSets"][0] |= change
    path = tmp_path / "generator.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=message):
        tl.simulate_cluster(jobs=path, policy="kueue")
