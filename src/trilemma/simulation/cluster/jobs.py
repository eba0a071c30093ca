"""What a cluster is asked for: jobs as gangs of pods, their time, queue, priority and what losing them costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trilemma.errors import InputError
from trilemma.simulation.cluster.nodes import LEVELS, WHOLE

#: Ticks of the clock in a second: times are whole microseconds, so that nothing is lost in sums.
TICKS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class GangShape:
    """What a job asks for at once, all or nothing: ``pods`` of ``gpus`` cards each (``gpu_milli`` thousandths of every one).

    ``within`` is a level of the topology that all pods (or each ``slice_pods`` of them) share: always where ``strict``, else
    where that is possible. ``models`` are cards that will do, none for all. ``fewest_pods`` will do where not all are free.
    """

    pods: int = 1
    gpus: int = 1
    gpu_milli: int = WHOLE
    cpu_milli: int = 0
    memory_mib: int = 0
    models: tuple[str, ...] = ()
    within: str = ""
    strict: bool = False
    slice_pods: int = 0
    fewest_pods: int = 0
    divisible: bool = False
    slices: int = 0
    slice_starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("pods", 1), ("gpus", 0), ("gpu_milli", 1), ("cpu_milli", 0), ("memory_mib", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} {getattr(self, name)} is out of range; give {least} or more")
        if self.gpu_milli > WHOLE or (self.gpu_milli < WHOLE and self.gpus > 1):
            raise InputError(f"{self.gpu_milli} thousandths of {self.gpus} GPUs: shares are of one GPU, up to {WHOLE}")
        if self.within and self.within not in (*LEVELS, "node"):
            raise InputError(f"topology level {self.within!r} is not known; use node, {', '.join(LEVELS)}")
        if self.fewest_pods > self.pods:
            raise InputError(f"at least {self.fewest_pods} pods of {self.pods}; the least is at most the whole")

    @property
    def total_gpus(self) -> float:
        return self.pods * self.gpus * self.gpu_milli / WHOLE

    def units(self, of_cpus: bool) -> int:
        """What it takes of the cluster: thousandths of cards, or of CPUs where the cluster has no cards."""
        return self.pods * (self.cpu_milli if of_cpus else self.gpus * self.gpu_milli)

    def in_single_cards(self) -> GangShape:
        """The same cards as pods of one each: how a divisible job runs where no node holds it."""
        pods = self.pods * self.gpus
        share = max(self.gpus, 1)
        return replace(
            self, pods=pods, gpus=1, cpu_milli=self.cpu_milli // share, memory_mib=self.memory_mib // share, divisible=False
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterJob:
    """One job: its work is ``work_ticks`` of all its pods beside each other (None: it stays for ever).

    ``limit_ticks`` is what the scheduler is told it will take. Losing it costs what was done since the last checkpoint
    (``checkpoint_ticks`` apart; None: all) and ``restart_ticks``. ``kind`` is a class told apart in waits, ``training`` names
    what it trains (a profile, or a command), of which its work may be ``steps``, and ``mfu`` how well it uses its cards; ``lazy``
    jobs are downgraded rather than thrown out where cells allow it; ``where`` its file states it. Of jobs that were seen,
    ``state`` is the last that was seen, ``start_ticks`` and ``end_ticks`` when they began and ended, ``on_nodes`` where.
    """

    name: str
    submit_ticks: int
    work_ticks: int | None
    shape: GangShape
    queue: str = ""
    priority: int = 0
    preemptible: bool = True
    checkpoint_ticks: int | None = None
    restart_ticks: int = 0
    limit_ticks: int | None = None
    user: str = ""
    kind: str = ""
    training: str = ""
    steps: float | None = None
    mfu: float | None = None
    lazy: bool = False
    where: str = ""
    state: str = ""
    start_ticks: int | None = None
    end_ticks: int | None = None
    on_nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("submit_ticks", "work_ticks", "checkpoint_ticks", "restart_ticks", "limit_ticks"):
            value = getattr(self, name)
            if value is not None and value < 0:
                what = name.removesuffix("_ticks")
                raise InputError(f"{what} {value / TICKS:g} s is negative; times are 0 or more")
        if self.checkpoint_ticks == 0:
            raise InputError("a checkpoint interval of 0 s; give one above 0, or none where nothing is saved")
        if self.mfu is not None and not 0 < self.mfu <= 1:
            raise InputError(f"mfu {self.mfu:g} is out of range; give a share above 0 up to 1")

    @property
    def expected_ticks(self) -> float:
        """What a scheduler that trusts its users expects it to take."""
        if self.limit_ticks is not None:
            return self.limit_ticks
        return math.inf if self.work_ticks is None else self.work_ticks


def gang_of(gpus: int, node_gpus: int, shape: GangShape) -> GangShape:
    """``gpus`` cards as pods: one where a node holds them, else pods of the largest size that divides both."""
    if gpus <= node_gpus:
        return replace(shape, pods=1, gpus=gpus)
    size = math.gcd(gpus, node_gpus)
    return replace(shape, pods=gpus // size, gpus=size)


def ticks(seconds: float) -> int:
    return round(seconds * TICKS)
