"""A wait that is told is calibrated: 80 % bounds, each from the jobs before it alone, hold for 72 to 88 % of a half left out."""

from __future__ import annotations

import pytest

import trilemma as tl
from trilemma.errors import InputError


@pytest.mark.parametrize(
    ("policy", "kind", "nodes", "load"), [("backfill", "kalos", "32x8", 1.0), ("first-fit", "kalos", "32x8", 1.0)]
)
def test_bounds_hold_as_often_as_they_say(policy: str, kind: str, nodes: str, load: float) -> None:
    found = tl.simulate_cluster(nodes, f"{kind}:12000", load=load, policy=policy, wait="8")
    wait = found.wait
    assert wait is not None
    assert wait.judged >= 5_500
    assert wait.waiting > 1_000
    assert wait.waiting_coverage is not None
    assert 0.72 <= wait.waiting_coverage <= 0.88
    assert wait.low_s <= wait.wait_s <= wait.high_s


def test_a_job_larger_than_the_cluster_never_starts() -> None:
    with pytest.raises(InputError, match="64 GPUs never start on the 32 of these nodes"):
        tl.simulate_cluster("4x8", "philly:300", wait="64")


def test_what_jobs_of_other_sizes_tell_is_said() -> None:
    """Of 300 jobs 6 take 8 GPUs: fewer than tell of jobs of a size."""
    found = tl.simulate_cluster("4x8", "philly:300", wait="8")
    assert found.wait is not None
    assert found.wait.alike == "load"
    assert f"told by {found.wait.like} of any size" in str(found)
    one = tl.simulate_cluster("4x8", "philly:300", wait="1").wait
    assert one is not None
    assert one.alike != "load"
