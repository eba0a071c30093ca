"""What a plan costs: ledger, cache, speed, bottleneck, price, and the verdict as the stage at which it lives or dies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trilemma.columns import column
from trilemma.engines.base import Stage
from trilemma.errors import Caution
from trilemma.intervals import Interval
from trilemma.memory.ledger import Ledger
from trilemma.plans.words import plan_words
from trilemma.quantities import GIB
from trilemma.question import Question

Resource = Literal["compute", "memory_bandwidth", "interconnect", "capacity", "host"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Where start-up ends, with the probability given to that stage, and the reason in one sentence; ``measured``: a log says
    so itself."""

    stage: Stage
    probability: float
    reason: str
    measured: bool = False


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
    ``most_requests_per_s`` is the largest rate of arrivals that the plan carries, where a rate was asked for.
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
    batch: float | None = None
    lines: Mapping[str, float] = field(default_factory=dict)
    operators: tuple[OperatorTime, ...] = ()
    ttft_lines: Mapping[str, float] = field(default_factory=dict)


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
    ``uses_host`` says that weights lie in the memory around the cards.
    """

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
    watts: float | None = None
    joules_per_token: float | None = None
    remedies: tuple[Remedy, ...] = ()
    warnings: tuple[Caution, ...] = ()
    ranks: tuple[Mapping[str, Any], ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        speed = self.speed
        told = ["fits" if self.verdict.stage == "ok" else str(self.verdict.stage)]
        told.append(f"{self.memory.total.value / GIB:,.1f} of {self.memory.capacity_bytes / GIB:,.1f} GiB a GPU")
        if speed is not None and speed.tpot_s is not None:
            told.append(f"TPOT {speed.tpot_s.interval.value * 1e3:.3g} ms")
        if speed is not None and speed.step_s is not None and speed.tpot_s is None:
            told.append(f"step {speed.step_s.interval.value:.3g} s")
        return f"<{type(self).__name__}: {repr(self.question)[11:-1]}, {self.summary[:60]}: {', '.join(told)}>"

    @property
    def inputs(self) -> dict[str, Any]:
        """The question in full as plain data, defaults filled in."""
        from trilemma.estimate.inputs import inputs_of

        return inputs_of(self)

    @property
    def command(self) -> str | None:
        """What to run; None for pools apart, which have a command each, and for training."""
        return self.extras.get("command")

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
        """Whether it starts: the memory holds, and the engine's parser takes the command (``extras["refused"]`` is absent)."""
        return self.verdict.stage == "ok" and not self.extras.get("refused")
