"""How long a month of a shared cluster takes under four policies on two cores, and how that grows with the jobs.

``python benchmarks/simulate_cluster.py [--jobs N] [--nodes N] [--load X]``. Jobs are drawn like Philly's (of 1 to 32 GPUs) on
nodes of eight; the bar is 50,000 jobs on 2,000 GPUs under four policies within 30 s of wall time on two cores.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from trilemma.simulation.cluster.drawn_jobs import draw_jobs  # noqa: E402
from trilemma.simulation.cluster.nodes import uniform_nodes  # noqa: E402
from trilemma.simulation.cluster.simulation import (  # noqa: E402
    ClusterQuestion,
    PolicyChoice,
    compare_policies,
    run_policy,
)

BAR_S, POLICIES = 30.0, ("fifo", "backfill", "best-fit", "kueue")


def question(jobs: int, nodes: int, load: float) -> ClusterQuestion:
    drawn = draw_jobs(
        "philly", jobs, capacity_gpus=nodes * 8, node_gpus=8, load=load, seed=1, checkpoint_s=1800.0, restart_s=120.0
    )
    return ClusterQuestion(nodes=tuple(uniform_nodes(nodes, 8, per_rack=8)), jobs=tuple(drawn))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--nodes", type=int, default=250)
    parser.add_argument("--load", type=float, default=0.95)
    arguments = parser.parse_args()
    asked = question(arguments.jobs, arguments.nodes, arguments.load)
    began = time.perf_counter()
    found = compare_policies([(asked, PolicyChoice(name=name)) for name in POLICIES], processes=2)
    took = time.perf_counter() - began
    cpu = sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    for one in found:
        wait = one.waits_s["all"]["mean"]
        print(
            f"{one.name:>9} {one.wall_s:6.2f} s, {one.events:,} events, allocated {one.allocated_share:.1%}, wait {wait:,.0f} s"
        )
    print(
        f"{arguments.jobs:,} jobs on {arguments.nodes * 8:,} GPUs, {len(POLICIES)} policies: {took:.1f} s (bar {BAR_S:.0f} s),"
        f" CPU {cpu:.1f} s"
    )
    for policy in POLICIES:
        row = []
        for share in (8, 4, 2, 1):
            many = arguments.jobs // share
            began = time.process_time()
            run_policy(question(many, arguments.nodes, arguments.load), PolicyChoice(name=policy))
            row.append(f"{many:,}: {(time.process_time() - began) / many * 1e6:.0f}")
        print(f"{policy:>9}, CPU microseconds a job by jobs: {', '.join(row)}")


if __name__ == "__main__":
    main()
