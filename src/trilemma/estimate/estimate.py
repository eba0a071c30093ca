"""What a plan costs: ledger, cache, speed, bottleneck, price, and the verdict as the stage at which it lives or dies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypedDict

from trilemma.columns import column
from trilemma.data.digest import Made, made_by
from trilemma.engines.base import Stage
from trilemma.errors import PlanWarning
from trilemma.estimate.measured import LogComparison
from trilemma.estimate.offer import Cost, LatencyTarget, NodeCommand, PoolCommand, Power
from trilemma.estimate.start_up_time import StartUpTime
from trilemma.intervals import Interval
from trilemma.memory.ledger import Ledger
from trilemma.plans.plan import Plan
from trilemma.plans.words import plan_words
from trilemma.quantities import GIB
from trilemma.question import Question


class Inputs(TypedDict):
    """A question restated in full as plain data."""

    model: dict[str, Any]
    cluster: dict[str, Any]
    workload: dict[str, Any]
    plan: dict[str, Any]
    engine: dict[str, Any]


Resource = Literal["compute", "memory_bandwidth", "interconnect", "capacity", "host"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Where start-up ends, with the probability of that stage, and why in one sentence; ``measured``: a log says so itself."""

    stage: Stage
    probability: float
    reason: str = field(metadata=column(hidden=True))
    measured: bool = field(default=False, metadata=column(hidden=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """The ledger of the worst rank against its card.

    ``capacity_bytes`` is what the runtime reports; ``usable_bytes`` what the engine gives itself (its budget);
    ``total`` the whole footprint with its own interval (bounds of lines do not add).
    """

    capacity_bytes: int
    usable_bytes: int
    total: Interval = field(metadata=column("total{}_bytes", spread=True, whole=True, then="headroom_bytes"))
    ledger: Ledger = field(metadata=column(inline=True))

    @property
    def headroom_bytes(self) -> float:
        return self.capacity_bytes - self.total.value


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheEstimate:
    """The KV pool: bytes per token of the whole engine and of one GPU, the pool per GPU, tokens and concurrency as printed.

    ``max_context`` is the longest single request that the pool has room for, within the model's own limit, whatever length
    the engine is told to admit (llama.cpp sizes its pool by that length); ``max_concurrency`` counts requests of full length.
    """

    bytes_per_token: float
    bytes_per_token_per_gpu: float
    available_bytes_per_gpu: Interval = field(metadata=column("available{}_bytes_per_gpu", spread=True, whole=True))
    tokens: Interval = field(metadata=column("tokens{}", spread=True, whole=True))
    blocks: int
    max_context: int
    max_concurrency: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """A figure of speed: ``interval.value`` is the mean; p50 and p99 where the load makes them differ."""

    interval: Interval = field(metadata=column(inline=True))
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorTime:
    """One line of the time per output token, on the busiest GPU; the lines of an estimate sum to its TPOT.

    ``seconds`` are exposed, ``share`` is of TPOT. ``roof_s`` is what the same work would take at the datasheet's peak,
    bandwidth and links (None where a line computes and moves nothing, such as launches). ``flops`` and ``bytes`` are what it
    computes and moves per token of each running sequence's step (None where not counted), ``computed_in`` the format of its
    peak. ``source`` says in a few words where the seconds come from.
    """

    name: str
    seconds: float
    share: float
    roof_s: float | None = field(default=None, metadata=column(then="fraction_of_roof"))
    flops: float | None = None
    bytes: float | None = None
    bound_by: Resource
    source: str
    computed_in: str | None = None

    @property
    def fraction_of_roof(self) -> float | None:
        """How near the line is to the datasheet: 1 is at it."""
        return self.roof_s / self.seconds if self.roof_s is not None and self.seconds > 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedEstimate:
    """Seconds and rates; a figure that does not apply is None. ``lines`` are the exposed parts of one step, in seconds.

    ``operators`` are the lines of a token's time in full, ``ttft_lines`` the parts of the time to the first, in seconds.
    ``comm_fraction`` and ``bubble_fraction`` are exposed parts of a training step; ``hfu`` counts recompute too.
    ``itl_s`` is the gap between two tokens (same mean as ``tpot_s``), ``request_s`` the time from sending to the last token.
    ``most_requests_per_s`` is the largest rate carried, where one was asked for; ``documents_per_s``: nothing is generated.
    ``ranges`` says in words of what runs the ranges are.
    """

    ttft_s: Latency | None = field(default=None, metadata=column("ttft_ms", scale=1e3))
    tpot_s: Latency | None = field(default=None, metadata=column("tpot_ms", scale=1e3))
    output_tokens_per_s: Interval | None = None
    step_s: Latency | None = None
    itl_s: Latency | None = field(default=None, metadata=column("itl_ms", scale=1e3))
    request_s: Latency | None = field(default=None, metadata=column("request_ms", scale=1e3))
    tokens_per_s_per_gpu: Interval | None = None
    mfu: Interval | None = None
    hfu: Interval | None = None
    comm_fraction: Interval | None = None
    bubble_fraction: Interval | None = None
    most_requests_per_s: Interval | None = None
    documents_per_s: Interval | None = None
    input_tokens_per_s: Interval | None = None
    batch: float | None = None
    lines: Mapping[str, float] = field(default_factory=dict)
    operators: tuple[OperatorTime, ...] = ()
    ttft_lines: Mapping[str, float] = field(default_factory=dict)
    ranges: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bottleneck:
    resource: Resource
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One change that makes a failing plan fit: what it is, the flags that make it, and what it costs."""

    change: str
    flags: str
    effect: str
    quality: str = "unchanged"
    cost_rank: float = field(default=0.0, metadata=column(hidden=True))


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Estimate:
    """The answer to one question, as it was settled: options that it left open stand in its plan.

    ``version`` is the engine's whose facts were used, ``context`` the longest request that it admits (serving), and
    ``uses_host`` says that weights lie in the memory around the cards. ``command`` is what to run, ``commands`` where pools
    have one each, `node_commands` where an engine spans nodes; ``refused`` says why the engine's parser would not take it.
    ``start_up`` is what the engine prints as it starts, ``start_up_time`` how long that takes, ``measured`` what a log says
    beside what we say. ``training_step`` (hidden seconds, passes), ``host_memory`` and ``training_run`` (days, interruptions)
    are of trainings.
    """

    #: The document ``trilemma/estimate@1``, in its order.
    COLUMNS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "schema": {}, "inputs": column(exact=True), "made_by": column(exact=True), "fits": {}, "verdict": {}, "reason": {},
        "memory": {}, "cache": column("kv_cache"), "speed": {}, "bottleneck": {}, "cost": {}, "power": column(exact=True),
        "ranks": column(exact=True), "remedies": {}, "warnings": column(keep="empty"), "start_up": column(exact=True),
        "start_up_time": {},
        "training_step": column(exact=True), "host_memory": column(exact=True), "command": {}, "commands": {},
        "node_commands": {}, "refused": {}, "targets": column(exact=True), "measured": column(exact=True),
        "training_run": column(exact=True),
    }  # fmt: skip

    question: Question[Any, Any]
    version: str
    context: int | None = None
    uses_host: bool = False
    verdict: Verdict
    memory: MemoryEstimate
    cache: CacheEstimate | None = None
    speed: SpeedEstimate | None = None
    bottleneck: Bottleneck | None = None
    usd_per_hour: Interval | None = None
    usd_per_million_tokens: Interval | None = None
    watts: Interval | None = None
    joules_per_token: Interval | None = None
    remedies: tuple[Remedy, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()
    ranks: tuple[Mapping[str, Any], ...] = ()
    command: str | None = None
    commands: tuple[PoolCommand, ...] = ()
    refused: tuple[str, ...] = ()
    start_up: Mapping[str, Any] = field(default_factory=dict)
    start_up_time: StartUpTime | None = None
    targets: tuple[LatencyTarget, ...] = ()
    measured: tuple[LogComparison, ...] = ()
    training_step: Mapping[str, Any] = field(default_factory=dict)
    host_memory: Mapping[str, Any] = field(default_factory=dict)
    training_run: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        speed = self.speed
        told = ["refused" if self.refused else "fits" if self.verdict.stage == "ok" else str(self.verdict.stage)]
        told.append(f"{self.memory.total.value / GIB:,.1f} of {self.memory.capacity_bytes / GIB:,.1f} GiB a GPU")
        if speed is not None and speed.tpot_s is not None:
            told.append(f"TPOT {speed.tpot_s.interval.value * 1e3:.3g} ms")
        if speed is not None and speed.step_s is not None and speed.tpot_s is None:
            told.append(f"step {speed.step_s.interval.value:.3g} s")
        return f"<{type(self).__name__}: {repr(self.question)[11:-1]}, {self.summary[:60]}: {', '.join(told)}>"

    @property
    def schema(self) -> Literal["trilemma/estimate@1"]:
        """How documents of this form are called."""
        return "trilemma/estimate@1"

    @property
    def made_by(self) -> Made:
        """Which version of the code and which facts made it."""
        return made_by()

    @property
    def inputs(self) -> Inputs:
        """The question in full as plain data, defaults filled in."""
        from trilemma.estimate.inputs import inputs_of

        return inputs_of(self)

    @property
    def node_commands(self) -> tuple[NodeCommand, ...]:
        """What to run on each node, where one engine of serving spans several."""
        from trilemma.estimate.over_nodes import node_commands

        return node_commands(self.question, self.version) if isinstance(self.question.plan, Plan) else ()

    @property
    def reason(self) -> str:
        """Of the verdict, in one sentence."""
        return self.verdict.reason

    @property
    def cost(self) -> Cost | None:
        """Dollars, where a price is known."""
        hour = self.usd_per_hour
        return None if hour is None else Cost(usd_per_hour=hour, usd_per_million_tokens=self.usd_per_million_tokens)

    @property
    def power(self) -> Power | None:
        """Watts and joules, where the cards state their power."""
        limit = self.question.cluster.watts
        if self.watts is None or limit is None:
            return None
        return Power(watts=self.watts, limit_watts=limit, joules_per_token=self.joules_per_token)

    @property
    def summary(self) -> str:
        """The plan in a few words."""
        return plan_words(self.question.plan)

    @property
    def carries(self) -> bool:
        """Whether it answers as many requests as arrive, where they arrive at a rate."""
        most = self.speed.most_requests_per_s if self.speed is not None else None
        asked = getattr(self.question.workload, "rate", None)
        return most is None or asked is None or asked <= most.value * (1 + 1e-9)

    @property
    def fits(self) -> bool:
        """Whether it starts: the memory holds, and the engine's parser takes the command (nothing is ``refused``)."""
        return self.verdict.stage == "ok" and not self.refused
