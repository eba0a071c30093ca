"""What a simulation says: figures of users and of the machine, as the document ``trilemma/simulation@1`` tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trilemma.columns import column
from trilemma.errors import PlanWarning
from trilemma.intervals import Interval
from trilemma.simulation.serving.allocation import AllocationWaste


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantiles:
    """Mean and percentiles of one figure of many requests, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of_seconds(cls, summary: Mapping[str, float]) -> Quantiles | None:
        """From a summary in seconds; None where there was no value."""
        return cls(**{name: seconds * 1e3 for name, seconds in summary.items()}) if summary else None


@dataclass(frozen=True, kw_only=True, slots=True)
class UserMetrics:
    """What users see: time to the first token, of it ``queue_ms`` until the scheduler takes a request in (handling and waiting;
    the rest computes the prompt), time a token after it, gaps between tokens, and the whole request."""

    ttft_ms: Quantiles | None
    queue_ms: Quantiles | None
    tpot_ms: Quantiles | None
    itl_ms: Quantiles | None
    e2e_ms: Quantiles | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheUse:
    """The paged cache: the share of named stretches of prompts, and of all prompt tokens, that were found; its fullest; blocks
    of one engine and tokens of each; the share of what requests held that was not filled, in their last blocks."""

    block_hit_rate: float
    token_hit_rate: float
    peak_share: float
    blocks: int
    block_size: int
    unfilled_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCacheUse:
    """Caches in the host's memory: ``blocks`` of one engine; the share of all prompt tokens that came back from there; gigabytes
    written and read by all engines; milliseconds until what a prompt needed was back, in the mean of those that needed any."""

    blocks: int
    token_hit_rate: float
    written_gb: float
    read_gb: float
    wait_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterUse:
    """Adapters of ``rank`` in ``slots`` of one engine: the share of requests whose adapter was in a slot, loads into slots and
    those of them that the host had to read first, seconds that steps waited for either, and how often a request was passed over
    because its adapter found no slot."""

    slots: int
    rank: int
    slot_hit_rate: float
    loads: int
    reads: int
    load_s: float
    passed_over: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Requests whose time to first token and mean time a token both hold their targets."""

    share: float
    requests_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledEngines:
    """Engines up at most and in the mean, each change as (seconds, engines), and the share of the GPUs' time that was used."""

    most: int
    mean: float
    changes: tuple[tuple[float, ...], ...]
    gpu_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantShare:
    """What one tenant got."""

    tenant: str
    requests: int
    output_tokens: int
    ttft_ms: Quantiles | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeteredCost:
    """Dollars of all cards over the time simulated, and what each request that was answered takes in the mean, with the joules
    of `EnergyOfRun`."""

    usd: float
    usd_per_million_tokens: float
    usd_per_request: float
    joules_per_token: float | None = None
    joules_per_request: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyOfRun:
    """What all cards draw in the time simulated, idle between requests too: watts in the mean, kilowatt-hours, and joules of an
    output token and of a request that was answered; ranges are what watts are off by at a rate that is known."""

    watts: Interval = field(metadata=column("watts{}", spread=True))
    kwh: Interval = field(metadata=column("kwh{}", spread=True))
    joules_per_token: Interval | None = field(metadata=column("joules_per_token{}", spread=True))
    joules_per_request: Interval | None = field(metadata=column("joules_per_request{}", spread=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadPoint:
    """The same requests at another rate of arrival, as a share of the rate at which the plan is saturated."""

    requests_per_s: float
    share_of_saturation: float
    completed_per_s: float
    metrics: UserMetrics
    goodput_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadCurve:
    """Latency against load: ``saturation_requests_per_s`` are answered where all requests are there at once, and ``knee`` is the
    last rate whose 99th percentile of the time to the first token is at most twice that of the lowest."""

    saturation_requests_per_s: float
    knee_requests_per_s: float
    points: tuple[LoadPoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherRun:
    """The same requests served otherwise; ``quicker_share`` of those answered in both took less time here."""

    inputs: Mapping[str, Any] = field(metadata=column(exact=True))
    requests: int
    completed: int
    rejected: int
    abandoned: int
    metrics: UserMetrics
    output_tokens_per_s: float
    requests_per_s: float
    preemptions: int
    goodput: Goodput | None
    cost: MeteredCost | None
    energy: EnergyOfRun | None
    quicker_share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolUse:
    """One of two pools: requests in it in the mean, and its cache at its fullest."""

    pool: str
    engines: int
    mean_running: float
    peak_share: float
    preemptions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingSimulation:
    """``requests`` came, ``completed`` were answered, ``rejected`` by the engine, ``abandoned`` by clients that waited too long.

    ``allocation`` is what the first requests would waste of a cache given out in other ways, ``bounds`` are `metrics` with every
    time as short and as long as the error bars of the estimate allow. ``series`` are readings of the first engine: seconds,
    running, waiting, share of the cache held; ``cdf_ms`` are (share of requests, milliseconds) of each figure.
    """

    schema: Literal["trilemma/simulation@1"] = "trilemma/simulation@1"
    inputs: Mapping[str, Any] = field(metadata=column(exact=True))
    requests: int
    completed: int
    rejected: int
    abandoned: int
    seconds_simulated: float
    metrics: UserMetrics
    bounds: Mapping[str, Any] = field(metadata=column(exact=True))
    output_tokens_per_s: float
    input_tokens_per_s: float
    requests_per_s: float
    tokens_per_s_per_gpu: float
    preemptions: int
    mean_running: float
    engines: int
    scaling: ScaledEngines | None
    goodput: Goodput | None
    cache: CacheUse
    host_cache: HostCacheUse | None = None
    adapters: AdapterUse | None = None
    allocation: tuple[AllocationWaste, ...]
    cost: MeteredCost | None
    energy: EnergyOfRun | None
    pools: tuple[PoolUse, ...] = ()
    compared: OtherRun | None = None
    tenants: tuple[TenantShare, ...] = ()
    load_curve: LoadCurve | None = None
    cdf_ms: Mapping[str, Any] = field(default_factory=dict, metadata=column(exact=True))
    series: tuple[tuple[float, ...], ...] = ()
    wall_s: float = field(metadata=column(exact=True))
    events: int
    warnings: tuple[PlanWarning, ...] = field(default=(), metadata=column(keep="empty"))
