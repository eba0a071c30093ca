"""Cards for a serving load: the fewest of each kind that carry it within the targets, the cheapest kind first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from trilemma.capacity.bounds import least_for_serving
from trilemma.capacity.choice import CardChoice, Recommendation
from trilemma.capacity.offers import Limits, Offers
from trilemma.capacity.ranking import Progress, ranked
from trilemma.engines import canonical
from trilemma.engines.cards import that_run_on
from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import EngineRef
from trilemma.search.precisions import WeightPrecision, precisions
from trilemma.search.search import search_serving
from trilemma.workloads import Serving


def recommend_serving(
    model: Model,
    workload: Serving,
    offers: Offers,
    *,
    top: int = 5,
    limits: Limits,
    engine: EngineRef | None = None,
    precision: Sequence[str] | None = None,
    kv_dtype: Sequence[str] | None = None,
    confidence: float | None = None,
    progress: Progress | None = None,
) -> Recommendation:
    """The ``top`` kinds of card, with their number, that carry ``workload`` at the least cost: each searched as `search_serving`
    does with the number of GPUs free, prefill and decode in the same engines.

    Without a load one request at a time is assumed and listed. A card without rules of ``engine`` gets the first engine that
    has some. Raises `InputError` where lengths are missing.
    """
    began = time.perf_counter()
    if workload.isl is None or workload.osl is None:
        raise InputError(
            "a recommendation needs what is run: `serve` ISL/OSL, such as `serve` 4096/1024, or `train` SEQ"
        )
    assumed: list[str] = []
    if workload.rate is None and workload.concurrency is None:
        workload = replace(workload, concurrency=1)
        assumed.append("no load asked for: one request at a time (--concurrency 1) assumed")
    asked = engine or EngineRef()

    def engine_on(card: Accelerator) -> EngineRef:
        others = that_run_on(card)
        return asked if canonical(asked.name) in others or not others else EngineRef(name=others[0])

    def stored_on(card: Accelerator) -> list[WeightPrecision]:
        return precisions(model, card, precision, engine=canonical(engine_on(card).name))

    def least(card: Accelerator) -> int:
        return least_for_serving(stored_on(card), card, workload)

    def laid(card: Accelerator) -> CardChoice | str:
        runs, node = engine_on(card), card.gpus_per_node
        found = search_serving(
            model, Cluster(accelerator=card, gpus=node, gpus_per_node=node), workload, top=1, engine=runs, free=True,
            precision=precision, kv_dtype=kv_dtype, confidence=confidence,
        )  # fmt: skip
        assumed.extend(words for words in found.assumed if words not in assumed)
        if not found.plans:
            return "no layout of them holds the model"
        first = found.plans[0]
        if not found.meets_targets:
            return "no layout of them carries the load within the targets"
        return offers.chosen(card, first.gpus, first.estimate, first.precision.name)

    best = ranked(offers, least, laid, top=top, limits=limits, progress=progress)
    return Recommendation(
        model=model,
        workload=workload,
        spared=offers.spared,
        choices=best.choices,
        asked=len(offers.cards),
        searched=best.searched,
        left_out=dict(best.left_out.most_common()),
        assumed=tuple(assumed),
        seconds=time.perf_counter() - began,
    )
