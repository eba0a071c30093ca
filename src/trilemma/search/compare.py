"""One job on several kinds of GPU: the best plan of each under the same latency target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trilemma.errors import InputError
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import EngineRef
from trilemma.search.found import Found
from trilemma.search.precisions import AS_PUBLISHED
from trilemma.search.search import search_serving
from trilemma.search.space import Constraints
from trilemma.workloads import Serving

#: How many GPUs are tried where those given do not hold the model.
_MOST_GPUS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One kind of GPU: the best plan with the weights as published, and the best with any precision the card runs.

    ``published`` and ``best`` are None where nothing starts; ``meets`` says whether each keeps to the targets.
    ``least_gpus`` is the smallest power of two of such GPUs that holds the weights as published, when more are needed.
    """

    cluster: Cluster
    published: Found | None
    best: Found | None
    published_meets: bool = False
    best_meets: bool = False
    least_gpus: int | None = None
    refused: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardComparison:
    """Candidates in the order given, for one load; ``assumed`` lists what was filled in."""

    model: Model
    workload: Serving
    candidates: tuple[Candidate, ...]
    assumed: tuple[str, ...]


def compare(
    model: Model,
    clusters: Sequence[Cluster],
    workload: Serving,
    *,
    precision: Sequence[str] | None = None,
    kv_dtype: Sequence[str] | None = None,
    engine: EngineRef | None = None,
) -> CardComparison:
    """Search each cluster for its best plan under the same targets: equal latency, then throughput, price and energy.

    ``precision`` limits the second plan of each; the first always runs the weights and the cache as published.
    """
    assumed: tuple[str, ...] = ()
    candidates = []
    for cluster in clusters:
        try:
            asked = search_serving(
                model, cluster, workload, top=1, precision=[AS_PUBLISHED], kv_dtype=["auto"], engine=engine
            )  # fmt: skip
            wide = search_serving(
                model, cluster, workload, top=1, precision=precision, kv_dtype=kv_dtype, engine=engine
            )
        except InputError as error:
            candidates.append(Candidate(cluster=cluster, published=None, best=None, refused=error.flags))
            continue
        assumed, workload = assumed or asked.assumed, asked.workload
        candidates.append(
            Candidate(
                cluster=cluster,
                published=asked.plans[0] if asked.plans else None,
                best=wide.plans[0] if wide.plans else None,
                published_meets=asked.meets_targets,
                best_meets=wide.meets_targets,
                least_gpus=None if asked.plans else _least_gpus(model, cluster, workload, engine),
            )
        )
    return CardComparison(model=model, workload=workload, candidates=tuple(candidates), assumed=assumed)


def _least_gpus(model: Model, cluster: Cluster, workload: Serving, engine: EngineRef | None) -> int | None:
    gpus = 1 << cluster.gpus.bit_length()
    while gpus <= _MOST_GPUS:
        larger = replace(cluster, gpus=gpus, gpus_per_node=min(gpus, cluster.accelerator.gpus_per_node))
        found = search_serving(
            model, larger, workload, top=1, precision=[AS_PUBLISHED], kv_dtype=["auto"], fixed=Constraints(dp=1), engine=engine
        )  # fmt: skip
        if found.plans:
            return gpus
        gpus *= 2
    return None
