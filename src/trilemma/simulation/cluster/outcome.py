"""What a simulation of a cluster says, as the document ``trilemma/cluster@1`` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trilemma.columns import column
from trilemma.errors import PlanWarning


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterHours:
    """GPU-hours by state (CPU-hours where no node has a GPU): ``capacity`` is the sum of the other four.

    ``of_idle``: no job waited, or jobs waited for more than was free. ``fragmented``: as much as a waiting job needs was free,
    and found no place. ``of_lost``: done again, or spent on starting again, after a preemption or failure; nodes that were down.
    """

    capacity: float
    useful: float
    idle: float
    fragmented: float
    lost: float
    of_idle: Mapping[str, Any] = field(metadata=column(exact=True))
    of_lost: Mapping[str, Any] = field(metadata=column(exact=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitEstimate:
    """Seconds that a job would wait if it came now, with the bounds that 80 % of such jobs keep.

    ``held_out_coverage`` is the share of jobs of the second half of the workload whose wait fell into such bounds when each was
    told from the jobs before it, ``judged`` how many; ``waiting`` of them were not told to start at once.
    ``like`` jobs tell it that are ``alike`` in size and queue, in size, or in nothing but the load when they came.
    """

    job: str
    wait_s: float
    low_s: float
    high_s: float
    held_out_coverage: float
    judged: int
    waiting_coverage: float | None
    waiting: int
    like: int
    alike: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StartForecast:
    """Seconds until a job starts that comes now, under one policy on so many nodes: the middle of ``draws`` runs from who runs
    and who waits, and what eight in ten of them keep to; None beyond thirty days. ``chance`` that it starts within ``by_s``."""

    name: str
    nodes: int
    gpus: float
    queue: str
    wait_s: float | None
    low_s: float | None
    high_s: float | None
    by_s: float | None
    chance: float | None
    draws: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyOutcome:
    """One policy on one cluster: jobs that were done, never started, thrown out; shares of the capacity.

    ``allocated_share`` of capacity x time (of the capacity at the end where no job ends), ``mfu_share`` the same weighed by the
    use that jobs make of their cards, of those that say so. ``worst_loss_s`` is the most that one preemption or failure undid,
    ``moves`` went to another place or size.
    """

    name: str
    nodes: int
    gpus: float
    completed: int
    unstarted: int
    preemptions: int
    moves: int = 0
    seconds_simulated: float
    allocated_share: float
    useful_share: float
    mfu_share: float | None = None
    worst_loss_s: float
    gpu_hours: ClusterHours
    waits_s: Mapping[str, Any] = field(metadata=column(exact=True))
    allocated_at_demand: Mapping[str, Any] = field(default_factory=dict, metadata=column(exact=True))
    completion_s: Mapping[str, Any] = field(default_factory=dict, metadata=column(exact=True))
    events: int
    wall_s: float = field(metadata=column(exact=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class JobsEfficiency:
    """Jobs of one training and size: useful GPU-hours, the use of the cards where they stood and where they would be nearest,
    GPU-hours that their places took of them, and GPU-hours that the best plan would save at its use of the cards."""

    training: str
    gpus: float
    jobs: int
    gpu_hours: float
    mfu: float | None
    nearest_mfu: float | None
    place_gain_gpu_hours: float
    best_mfu: float | None = None
    best_layout: str = ""
    plan_gain_gpu_hours: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueUsage:
    """One queue: useful GPU-hours, their share of the capacity, waits, and the use of the cards by the jobs that tell it."""

    queue: str
    jobs: int
    gpu_hours: float
    share: float
    wait_p50_s: float | None
    wait_p90_s: float | None
    mfu: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EndUsage:
    """GPU-hours of the jobs that were last seen in one state, and their share of all."""

    state: str
    jobs: int
    gpu_hours: float
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleJob:
    """A job that uses its cards less than three of four jobs of its size do, and the hours that their use would save."""

    job: str
    user: str
    queue: str
    gpus: float
    gpu_hours: float
    mfu: float
    usual_mfu: float
    gain_gpu_hours: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceTime:
    """Shares of the cards in use of ``groups`` of nodes over slices of time: rows of (group, from hours, to hours, share), of
    (from hours, to hours, GPUs that jobs wait for), and of (queue, from hours, to hours, GPUs that its jobs hold)."""

    groups: tuple[str, ...]
    rows: tuple[tuple[str, float, float, float], ...]
    waiting: tuple[tuple[float, float, float], ...]
    queues: tuple[tuple[str, float, float, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSimulation:
    """``jobs`` on a cluster under the first policy, and ``compared`` with others. ``picture`` are stretches of jobs on nodes."""

    schema: Literal["trilemma/cluster@1"] = "trilemma/cluster@1"
    inputs: Mapping[str, Any] = field(metadata=column(exact=True))
    jobs: int
    outcome: PolicyOutcome = field(metadata=column(inline=True))
    wait: WaitEstimate | None = None
    forecast: tuple[StartForecast, ...] = ()
    compared: tuple[PolicyOutcome, ...] = ()
    efficiency: tuple[JobsEfficiency, ...] = ()
    queues: tuple[QueueUsage, ...] = ()
    ends: tuple[EndUsage, ...] = ()
    idle_jobs: tuple[IdleJob, ...] = ()
    warnings: tuple[PlanWarning, ...] = field(default=(), metadata=column(keep="empty"))
    exported: tuple[str, ...] = ()
    picture: SpaceTime | None = field(default=None, metadata=column(hidden=True))
