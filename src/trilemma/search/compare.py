"""One job on several kinds of GPU: the best plan of each under the same latency target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trilemma.engines import canonical
from trilemma.engines.cards import that_run_on
from trilemma.errors import InputError
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import EngineRef
from trilemma.search.found import Found
from trilemma.search.precisions import AS_PUBLISHED
from trilemma.search.result import SearchResult
from trilemma.search.search import search_serving
from trilemma.search.space import Constraints
from trilemma.workloads import Serving

#: How many GPUs are tried where those given do not hold the model.
_MOST_GPUS = 128
#: A target that every plan holds: what is left to ask is whether it starts.
_NO_TARGET_MS = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One kind of GPU: the best plan with the weights as published, and the best with any precision the card runs.

    ``published`` and ``best`` are None where nothing starts that carries the load; ``meets`` says whether each keeps to the
    targets, ``starts`` whether any plan starts at all. ``least_gpus`` is the fewest of such GPUs that carry a stated load within
    the targets, or without one the smallest power of two that holds the weights as published, when more are needed.
    ``engine`` is the one that runs it, ``instead_of`` the one asked for where that has no rules for the card.
    """

    cluster: Cluster
    starts: bool = True
    engine: str = ""
    instead_of: str = ""
    published: Found | None
    best: Found | None
    published_meets: bool = False
    best_meets: bool = False
    least_gpus: int | None = None
    refused: str = ""
    #: What was assumed of its targets.
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CardComparison:
    """Candidates in the order given, for one load; ``assumed`` lists what was filled in. Where a target that nobody asked for
    is held on some cards alone, ``workload`` is that of the first, and each candidate tells its own."""

    model: Model
    workload: Serving
    candidates: tuple[Candidate, ...]
    assumed: tuple[str, ...]


def compare(
    model: Model,
    clusters: Sequence[Cluster],
    workload: Serving,
    *,
    free: Sequence[bool] = (),
    precision: Sequence[str] | None = None,
    kv_dtype: Sequence[str] | None = None,
    engine: EngineRef | None = None,
) -> CardComparison:
    """Search each cluster for its best plan as `search_serving` does: equal latency, then throughput, price and energy.

    ``free`` says of which the number of GPUs is searched too; such a cluster is one node. ``precision`` limits the second plan of
    each; the first always runs the weights and the cache as published. A card on which no rules of ``engine`` are known gets the
    first engine that has some.
    """
    settled: SearchResult | None = None
    candidates = []
    for at, cluster in enumerate(clusters):
        asked = _Asked(
            model=model, cluster=cluster, engine=_engine_for(cluster, engine or EngineRef()),
            free=at < len(free) and free[at],
        )  # fmt: skip
        try:
            wide = asked.search(workload, precision=precision, kv_dtype=kv_dtype)
            found = asked.search(wide.workload, precision=[AS_PUBLISHED], kv_dtype=["auto"], assume=False)
        except InputError as error:
            candidates.append(Candidate(cluster=cluster, published=None, best=None, starts=False, refused=error.flags))
            continue
        settled = settled or wide
        candidates.append(_candidate(asked, found, wide, wide.workload, instead_of=engine or EngineRef()))
    return CardComparison(
        model=model,
        workload=workload if settled is None else settled.workload,
        candidates=tuple(candidates),
        assumed=() if settled is None else settled.assumed,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """What is asked of one kind of GPU."""

    model: Model
    cluster: Cluster
    engine: EngineRef
    free: bool

    def search(self, workload: Serving, **options: Any) -> SearchResult:
        given: dict[str, Any] = {"pools": "both", "free": self.free} | options
        return search_serving(self.model, self.cluster, workload, top=1, engine=self.engine, **given)


def _engine_for(cluster: Cluster, asked: EngineRef) -> EngineRef:
    """``asked``, or the first engine with rules for the card where it has none."""
    others = that_run_on(cluster.accelerator)
    name = canonical(asked.name)
    return asked if name in others or not others else EngineRef(name=others[0])


def _candidate(
    asked: _Asked, found: SearchResult, wide: SearchResult, workload: Serving, *, instead_of: EngineRef
) -> Candidate:
    stated = workload.rate is not None or workload.concurrency is not None
    least = None
    if stated and not wide.meets_targets and not asked.free:
        least = _carrying(asked, workload)
    elif not found.fitting:
        least = _holding(asked, workload)
    first = wide.plans[0] if wide.plans else None
    cluster = replace(asked.cluster, gpus=first.gpus) if asked.free and first is not None else asked.cluster
    return Candidate(
        cluster=cluster,
        starts=bool(wide.fitting),
        engine=asked.engine.name,
        instead_of="" if asked.engine == instead_of else instead_of.name,
        published=found.plans[0] if found.plans else None,
        best=first,
        published_meets=found.meets_targets,
        best_meets=wide.meets_targets,
        least_gpus=least,
        assumed=wide.assumed,
    )


def _carrying(asked: _Asked, workload: Serving) -> int | None:
    """The fewest GPUs that carry the load within the targets, as `search_serving` finds them."""
    usual = asked.cluster.accelerator.gpus_per_node
    node = replace(asked.cluster, gpus=usual, gpus_per_node=usual, cards=())
    found = replace(asked, cluster=node, free=True).search(workload)
    return found.least_gpus


def _holding(asked: _Asked, workload: Serving) -> int | None:
    gpus = 1 << asked.cluster.gpus.bit_length()
    unloaded = replace(workload, rate=None, concurrency=None, ttft_ms=_NO_TARGET_MS, tpot_ms=_NO_TARGET_MS)
    while gpus <= _MOST_GPUS:
        larger = replace(asked.cluster, gpus=gpus, gpus_per_node=min(gpus, asked.cluster.accelerator.gpus_per_node))
        found = replace(asked, cluster=larger, free=False).search(
            unloaded, precision=[AS_PUBLISHED], kv_dtype=["auto"], fixed=Constraints(dp=1), pools="aggregated"
        )
        if found.plans:
            return gpus
        gpus *= 2
    return None
