"""Workloads drawn by the statistics of known clusters, and workloads made to demand a share of the cards."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trilemma.data.files import read_data
from trilemma.errors import InputError
from trilemma.simulation.cluster.jobs import ClusterJob, GangShape, gang_of, ticks

#: Seconds of the longest job, and how often work and the time that jobs come over are matched.
_LONGEST_S, _CUTS = 30 * 86400.0, 20


def draw_jobs(
    kind: str, many: int, *, capacity_gpus: int, node_gpus: int, load: float, seed: int, checkpoint_s: float | None,
    restart_s: float,
) -> list[ClusterJob]:  # fmt: skip
    """``many`` jobs like those of the cluster ``kind``, arriving by chance so that they ask for ``load`` of ``capacity_gpus``.

    Sizes by their shares, work log-normal and longer the larger the job, cut at a quarter of the time that they come over; sizes
    beyond half the cluster are left out.
    """
    known = {one["name"]: one for one in read_data("simulation/cluster_traces.toml")["workload"]}
    if kind not in known:
        raise InputError(f"`jobs` {kind!r} is no known workload; use {', '.join(known)}, or a file")
    if many < 1 or capacity_gpus < 1:
        raise InputError(f"`jobs` {kind}:{many} on {capacity_gpus} GPUs: give one job or more, and nodes with GPUs")
    if not load > 0:
        raise InputError(f"`load` {load:g} is out of range; give a share above 0, such as 0.8")
    row: Any = known[kind]
    rng = np.random.default_rng(seed)
    sizes = [(size, share) for size, share in row["gpus"] if size <= max(capacity_gpus // 2, 1)]
    shares = np.array([share for _, share in sizes])
    gpus = rng.choice([size for size, _ in sizes], size=many, p=shares / shares.sum())
    middles = row["median_s"] * row["longer_per_doubling"] ** np.log2(gpus)
    work = np.exp(rng.normal(np.log(middles), row["sigma"]))
    span = math.inf
    for _ in range(
        _CUTS
    ):  # a job much longer than the time that jobs come over would leave the cluster empty behind it
        work = np.minimum(work, min(_LONGEST_S, max(span / 4, 4 * row["median_s"])))
        span = float((gpus * work).sum()) / (capacity_gpus * load)
    submits = np.sort(rng.uniform(0, span, size=many))
    shapes = {int(size): gang_of(int(size), node_gpus, GangShape()) for size, _ in sizes}
    return [
        ClusterJob(
            name=f"{kind}-{at}",
            submit_ticks=ticks(float(submit)),
            work_ticks=max(ticks(float(seconds)), 1),
            shape=shapes[int(size)],
            checkpoint_ticks=None if checkpoint_s is None else ticks(checkpoint_s),
            restart_ticks=ticks(restart_s),
        )
        for at, (submit, seconds, size) in enumerate(zip(submits, work, gpus, strict=True))
    ]


def demanding(
    jobs: Sequence[ClusterJob], capacity_units: int, demand: float, seed: int, *, of_cpus: bool
) -> list[ClusterJob]:
    """Jobs of ``jobs`` in an order drawn by ``seed``, some left out or drawn again until they ask for ``demand`` of the cluster;
    they come one a second and stay for ever (Weng et al. 2023, section 6.1)."""
    if not 0 < demand <= 10:
        raise InputError(f"`demand` {demand:g} is out of range; give a share such as 1.0, up to 10")
    rng = random.Random(seed)
    order = list(jobs)
    rng.shuffle(order)
    wanted = demand * capacity_units
    total = sum(one.shape.units(of_cpus) for one in order)
    if total == 0:
        raise InputError("`demand` needs jobs that ask for GPUs; these ask for none")
    while total > wanted and order:
        total -= order.pop(rng.randrange(len(order))).shape.units(of_cpus)
    while True:
        one = jobs[rng.randrange(len(jobs))]
        units = one.shape.units(of_cpus)
        if total + units > wanted:
            break
        total += units
        order.append(one)
    return [replace(one, submit_ticks=ticks(at), work_ticks=None) for at, one in enumerate(order)]


def faster(jobs: Sequence[ClusterJob], times: float) -> list[ClusterJob]:
    """The same jobs arriving ``times`` as fast."""
    if not (times > 0 and math.isfinite(times)):
        raise InputError(f"`scale_arrivals` {times:g} is out of range; give a number above 0")
    return [replace(one, submit_ticks=round(one.submit_ticks / times)) for one in jobs]
