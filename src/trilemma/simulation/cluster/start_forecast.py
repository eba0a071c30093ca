"""When a job would start that came now, told from who runs and who waits: the cluster run on from there, many times over."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from trilemma.errors import InputError, shorten
from trilemma.simulation.cluster.jobs import TICKS, ClusterJob, GangShape, gang_of
from trilemma.simulation.cluster.nodes import WHOLE
from trilemma.simulation.cluster.outcome import StartForecast
from trilemma.simulation.cluster.simulation import ClusterQuestion, PolicyChoice, run_policy
from trilemma.simulation.cluster.tables import RUNS, STILL

#: Times that the cluster is run on, the bounds that are told, and the longest that is looked ahead.
_DRAWS, _LOW, _HIGH, _LONGEST_S = 48, 0.1, 0.9, 30 * 86400.0
#: Jobs that are over and say what they took of their limit: fewest that are believed, and the share where fewer are known.
_FEWEST, _LEAST_SHARE = 25, 0.02
#: Jobs of the nearest limits that tell what is taken of one.
_ALIKE = 100
_ASKED = "the job that is asked for"


class AskedJob(NamedTuple):
    """``limit_s``: what the scheduler is told; None: as the middle job says. ``at_ticks``: when it comes; None: with the last
    that is known of the others."""

    gpus: float
    queue: str
    limit_s: float | None
    at_ticks: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class UsualLengths:
    """What jobs took of their limits (``shares`` by ``limits_s``, the shortest limit first: longer ones are taken less of), and
    how long they ran, of those that are over."""

    limits_s: tuple[float, ...]
    shares: tuple[float, ...]
    lengths_s: tuple[float, ...]

    @classmethod
    def of(cls, jobs: Sequence[ClusterJob]) -> UsualLengths:
        done = [one for one in jobs if one.state not in STILL and one.work_ticks]
        told = sorted(
            (one.limit_ticks / TICKS, min((one.work_ticks or 0) / one.limit_ticks, 1.0)) for one in done if one.limit_ticks
        )  # fmt: skip
        told = told if len(told) >= _FEWEST else []
        lengths = sorted((one.work_ticks or 0) / TICKS for one in done) if len(done) >= _FEWEST else []
        return cls(
            limits_s=tuple(limit for limit, _ in told), shares=tuple(share for _, share in told), lengths_s=tuple(lengths)
        )  # fmt: skip

    def drawn_ticks(self, job: ClusterJob, ran_ticks: int, level: float) -> int:
        """How long ``job`` runs in all, at ``level`` of what is usual of those that ran as long as it has."""
        if job.limit_ticks:
            shares = self._shares_like(job.limit_ticks / TICKS) or (_LEAST_SHARE, 1.0)
            return round(job.limit_ticks * _beyond(shares, ran_ticks / job.limit_ticks, level, even=not self.shares))
        if not self.lengths_s:
            raise InputError(
                f"{job.where or shorten(job.name, most=40)}: it has no time limit, and fewer than {_FEWEST} jobs are over that"
                " tell how long jobs run; give `history`, such as a month of sacct"
            )
        return round(TICKS * _beyond(self.lengths_s, ran_ticks / TICKS, level, even=False))

    def _shares_like(self, limit_s: float) -> Sequence[float]:
        """Shares of the jobs with the nearest limits, all of a limit where they are many."""
        first, last = bisect_left(self.limits_s, limit_s), bisect_right(self.limits_s, limit_s)
        while last - first < min(_ALIKE, len(self.shares)):
            below = limit_s / self.limits_s[first - 1] if first else math.inf
            above = self.limits_s[last] / limit_s if last < len(self.shares) else math.inf
            first, last = (first - 1, last) if below <= above else (first, last + 1)
        return sorted(self.shares[first:last])


def _beyond(known: Sequence[float], least: float, level: float, *, even: bool) -> float:
    """The quantile ``level`` of those of ``known`` that are above ``least``; ``even``: of all between its ends alike."""
    if even:
        low = max(known[0], min(least, known[-1]))
        return low + (known[-1] - low) * level
    at = int(np.searchsorted(known, least, side="right"))
    left = known[at:]
    return float(left[min(int(level * len(left)), len(left) - 1)]) if left else max(known[-1], least * 1.1)


def still_there(jobs: Sequence[ClusterJob]) -> bool:
    """Whether jobs are of a moment: some run or wait."""
    return any(one.state in STILL for one in jobs)


def forecast(
    question: ClusterQuestion, choices: Sequence[tuple[ClusterQuestion, PolicyChoice]], asked: AskedJob, usual: UsualLengths,
    *, by_s: float | None, seed: int, processes: int,
) -> tuple[StartForecast, ...]:  # fmt: skip
    """For each of ``choices`` (the cluster as it is, with other policies or more nodes) when ``asked`` starts."""
    drawn = [_moment(question, asked, usual, np.random.default_rng((seed, at))) for at in range(_DRAWS)]
    until = round(_LONGEST_S * TICKS)
    tasks = [
        (
            replace(one, jobs=jobs, begun=True, rules=replace(one.rules, until_ticks=until, keeps_stretches=False)),
            choice,
        )
        for one, choice in choices
        for jobs in drawn
    ]
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            waits = list(pool.map(_wait_s, tasks, chunksize=max(len(tasks) // (4 * processes), 1)))
    else:
        waits = [_wait_s(one) for one in tasks]
    found = []
    for at, (one, choice) in enumerate(choices):
        mine = np.sort(np.array(waits[at * _DRAWS : (at + 1) * _DRAWS]))
        low, middle, high = (float(mine[min(int(level * _DRAWS), _DRAWS - 1)]) for level in (_LOW, 0.5, _HIGH))
        found.append(
            StartForecast(
                name=choice.name, nodes=len(one.nodes), gpus=asked.gpus, queue=asked.queue, wait_s=_finite(middle),
                low_s=_finite(low), high_s=_finite(high), by_s=by_s,
                chance=None if by_s is None else float((mine <= by_s).mean()), draws=_DRAWS,
            )
        )  # fmt: skip
    return tuple(found)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _moment(question: ClusterQuestion, asked: AskedJob, usual: UsualLengths, rng: Any) -> tuple[ClusterJob, ...]:
    """Who runs and who waits, with what is left of them drawn, and the job that is asked for behind them."""
    now = max(max(one.submit_ticks, one.start_ticks or 0, one.end_ticks or 0) for one in question.jobs)
    now = now if asked.at_ticks is None else asked.at_ticks
    found = []
    for one in question.jobs:
        if one.state not in STILL:
            continue
        ran = now - one.start_ticks if one.state in RUNS and one.start_ticks is not None else 0
        length = usual.drawn_ticks(one, ran, float(rng.random()))
        limit = None if one.limit_ticks is None else max(one.limit_ticks - ran, 1)
        found.append(
            replace(
                one,
                submit_ticks=0,
                work_ticks=max(length - ran, 1),
                limit_ticks=limit,
                start_ticks=0 if ran or one.state in RUNS else None,
            )
        )
    limits = sorted(one.limit_ticks for one in question.jobs if one.limit_ticks)
    middle = limits[len(limits) // 2] if limits else None
    limit = middle if asked.limit_s is None else round(asked.limit_s * TICKS)
    node_gpus = max(one.gpus for one in question.nodes)
    if asked.gpus < 1:
        shape = GangShape(gpu_milli=max(round(asked.gpus * WHOLE), 1))
    else:
        shape = gang_of(round(asked.gpus), node_gpus, GangShape())
    found.append(
        ClusterJob(name=_ASKED, submit_ticks=0, work_ticks=limit or TICKS, shape=shape, queue=asked.queue, limit_ticks=limit)
    )  # fmt: skip
    return tuple(found)


def _wait_s(task: tuple[ClusterQuestion, PolicyChoice]) -> float:
    run, _ = run_policy(*task)
    asked = next(one for one in run.runs if one.job.name == _ASKED)
    return math.inf if asked.first_start is None else asked.first_start / TICKS
