"""One job on its way through the cluster: waiting, running, thrown out, done."""

from __future__ import annotations

import math

from trilemma.simulation.cluster.jobs import ClusterJob, GangShape
from trilemma.simulation.cluster.quotas import QuotaNode
from trilemma.simulation.cluster.state import PlacedPod


class JobRun:
    """A job as it stands. ``kept`` ticks of its work are safe; ``epoch`` tells the end of an earlier stretch from that of this,
    ``form`` numbers the shapes of a workload, ``seen`` are the units that were free and those that were waited for when it came.
    ``spread`` is how many times as long its work takes for its place, ``mfu`` the use of its cards there; ``useful_units``,
    ``spread_units`` and ``mfu_units`` are units x ticks of kept work, what of them its place cost, and all weighed by the use.
    """

    __slots__ = (
        "admitted", "at", "downgraded", "ends", "epoch", "finished", "first_start", "form", "job", "kept", "lost", "mfu",
        "mfu_units", "moves", "order", "overhead", "pace", "placed", "preemptions", "quota", "restart_cause", "seen", "shape",
        "span", "spread", "spread_units", "started", "stretches", "units", "units_asked", "useful_units",
        "worst_loss",
    )  # fmt: skip

    def __init__(self, at: int, job: ClusterJob, quota: QuotaNode | None, form: int, units: int) -> None:
        self.at = at
        self.form = form
        self.job = job
        self.quota = quota
        self.shape: GangShape = job.shape
        self.units = self.units_asked = units
        self.seen = (0, 0)
        self.order = (-job.priority, job.submit_ticks, at)
        self.kept = 0
        self.placed: tuple[PlacedPod, ...] = ()
        self.started = 0
        self.ends: float = math.inf
        self.overhead = 0
        self.pace = 1.0
        self.epoch = 0
        self.first_start: int | None = None
        self.admitted: int | None = None
        self.finished: int | None = None
        self.preemptions = 0
        self.moves = 0
        self.restart_cause = ""
        self.lost = 0
        self.worst_loss = 0
        self.span = ""
        self.spread = 1.0
        self.mfu: float | None = None
        self.useful_units = 0
        self.spread_units = 0.0
        self.mfu_units = 0.0
        self.stretches: list[tuple[int, int, tuple[PlacedPod, ...]]] = []
        self.downgraded = False

    @property
    def running(self) -> bool:
        return bool(self.placed)

    @property
    def expected_end(self) -> float:
        """When a scheduler that trusts its users expects the cards back."""
        job = self.job
        left = job.expected_ticks if job.limit_ticks is not None else job.expected_ticks - self.kept
        return self.started + self.overhead + left * self.pace

    def begin(self, now: int, placed: tuple[PlacedPod, ...], pace: float, delay: int = 0) -> None:
        """Run on ``placed`` from ``now``, ``pace`` times as long as beside each other; work begins ``delay`` ticks later."""
        self.placed, self.started, self.pace = placed, now, pace
        self.epoch += 1
        self.overhead = delay + (self.job.restart_ticks if self.restart_cause else 0)
        self.restart_cause = self.restart_cause or ("starting" if delay else "")
        self.admitted = now + delay
        if self.first_start is None:
            self.first_start = now + delay
        work = self.job.work_ticks
        left = math.inf if work is None else max(work - self.kept, 0)
        self.ends = now + self.overhead + (left if left == math.inf else round(left * pace))

    def split(self, now: int, *, whole: bool) -> tuple[int, int, int]:
        """Ticks of this stretch up to ``now`` that are kept, lost and spent on starting; ``kept`` moves on.

        ``whole``: the job ends well, so all is kept; else what stands since its last checkpoint is lost.
        """
        spent = now - self.started
        starting = min(spent, self.overhead)
        ran = spent - starting
        if whole:
            return ran, 0, starting
        each = self.job.checkpoint_ticks
        if each is None:
            return 0, ran, starting
        reached = self.kept + int(ran / self.pace)
        safe = max(reached // each * each, self.kept)
        good = min(ran, round((safe - self.kept) * self.pace))
        self.kept = safe
        return good, ran - good, starting
