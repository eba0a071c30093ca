"""Models and servers that generate nothing: embeddings, classes, scores and rewards are one pass over each document."""

from __future__ import annotations

from typing import cast

import numpy as np

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.generating import embeds_documents, named_so
from trilemma.errors import InputError, PlanWarning
from trilemma.estimate.estimate import Bottleneck, Latency, Resource, SpeedEstimate
from trilemma.estimate.number_formats import as_computed
from trilemma.estimate.serving_load import ASSUMED_ISL
from trilemma.estimate.speed import Speed, source_warnings
from trilemma.formats import catalogue
from trilemma.intervals import Interval
from trilemma.models.architecture import Model
from trilemma.quantities import show_count
from trilemma.question import ServingQuestion
from trilemma.timing import Machine, model_work
from trilemma.timing.disaggregation import prefill_worker
from trilemma.timing.host_weights import split_work
from trilemma.timing.intervals import ranges_in_words, speed_spread


def check_generates(model: Model) -> None:
    """Raise `InputError` for a model that generates nothing, where plans are told by the tokens that they generate."""
    if named_so(model):
        raise InputError(
            f"{model.name} answers with vectors or scores and generates no tokens to go by; ask fit for documents a second"
        )


def pooling_speed(start: StartUp, question: ServingQuestion) -> Speed:
    """Documents and tokens a second of passes over prompts alone; no token follows, so no figure of tokens does either.

    Short documents run several to a pass, stages and attention replicas at once, as a pool that prefills alone does. One
    document's time is that of its own pass, or of its place among those under way where more are than the plan takes at once.
    """
    model, cluster, plan, load = question.model, question.cluster, question.plan, question.workload
    isl = load.isl or min(ASSUMED_ISL, start.context)
    model = as_computed(model, plan.engine.name, plan.pool.options)
    machine = Machine.serving(
        cluster, work=model_work(model, cluster.accelerator), engine=engines.canonical(plan.engine.name)
    )
    worker = prefill_worker(
        split_work(model, cluster.accelerator, start.on_host), machine, plan.pool.layout, isl=isl,
        kv_format=catalogue.get(start.kv_format), prefix_hit=load.prefix_hit,
    )  # fmt: skip
    able = float(np.asarray(worker.servers) / np.asarray(worker.each_s)) * plan.pool.replicas
    alone_s = float(np.asarray(worker.alone_s))
    waits_s = max(alone_s, (load.concurrency or 1) / able)
    low, high = speed_spread(machine, model)["ttft"]
    rate = Interval(value=able, low=able / high, high=able / low)
    figures = SpeedEstimate(
        documents_per_s=rate,
        input_tokens_per_s=rate.scaled(isl),
        request_s=Latency(interval=Interval(value=waits_s, low=waits_s * low, high=waits_s * high)),
        most_requests_per_s=rate if load.rate is not None else None,
        ranges=ranges_in_words(machine, model),
    )
    return Speed(
        figures=figures,
        bottleneck=_bottleneck(worker.work.resources),
        output_tokens_per_s=0.0,
        warnings=(*_warnings(question, isl, able), *source_warnings(machine)),
    )


def _bottleneck(resources: object) -> Bottleneck:
    parts = {name: float(np.asarray(seconds)) for name, seconds in dict(cast(dict[str, object], resources)).items()}
    name = max(parts, key=parts.__getitem__)
    share = parts[name] / max(sum(parts.values()), 1e-12)
    return Bottleneck(resource=cast(Resource, name), detail=f"{share:.0%} of the time of a pass over a document")


def _warnings(question: ServingQuestion, isl: int, able: float) -> list[PlanWarning]:
    load, found = question.workload, []
    told = "the model answers with a vector or a score: no token is generated"
    found.append(PlanWarning(code="generates-nothing", message=told))
    if not embeds_documents(question.plan):
        since = engines.traits_of(question.plan.engine.name).embeds_documents_from
        said = f"its command embeds from {since} on; before that, ask its server, such as by POST /api/embed"
        found.append(PlanWarning(code="embeds-by-server", message=said))
    if load.isl is None:
        found.append(
            PlanWarning(
                code="assumed-load", message=f"speed assumes documents of {show_count(isl)} tokens, many at once"
            )
        )
    if load.rate is not None and load.rate > able:
        message = f"{load.rate:g} documents a second are more than this plan carries: at most {able:.3g}"
        found.append(PlanWarning(code="overloaded", message=message))
    return found
