"""One serving plan judged, or the best ones searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trilemma.ask.answers import Answer
from trilemma.ask.nouns import (
    cluster_of,
    counts,
    engine_of,
    engines_of,
    model_of,
    of_library,
    storage_rate,
    weights_of,
    workload_of,
)
from trilemma.ask.options import fields_of
from trilemma.ask.pictures import with_images
from trilemma.ask.profiles import anchored_by, terms_of
from trilemma.errors import InputError
from trilemma.hardware.accelerator import Accelerator
from trilemma.plans import Plan, ServeOptions
from trilemma.quantities import GIB
from trilemma.question import Question

if TYPE_CHECKING:
    from trilemma.ask.compared import CardsCompared
    from trilemma.ask.searched import ServingPlans
    from trilemma.hardware.cluster import Cluster
    from trilemma.search.result import SearchResult
    from trilemma.timing.serving_terms import ServingTerms
    from trilemma.workloads import Serving

#: Plans that a search may show, and cards that a comparison may set side by side.
_MOST_SHOWN, _MOST_CARDS = 100, 16


def one_plan(model: Any, gpu: Any, options: SimpleNamespace, *, plan: Plan | None, workload: Serving | None) -> Answer:
    """One plan in full, and where it does not start, the changes with which it would."""
    return judged(question_of(model, gpu, options, plan=plan, workload=workload))


def question_of(
    model: Any, gpu: Any, options: SimpleNamespace, *, plan: Plan | None = None, workload: Serving | None = None
) -> Question[Serving, Plan]:
    """What the options ask; ``plan`` and ``workload`` take the place of those that make them."""
    cluster = cluster_of(gpu, options, mixed=True)
    weights = weights_of(
        model, cluster.accelerator, precision=options.precision, models=options.models, engine=options.engine
    )
    load = with_images(workload or workload_of(options), weights.model, plan, text_only=weights.text_only)
    if plan is None:
        plan, cluster = engines_of(gpu, options, cluster, context=load.longest_request, quantization=weights.on_load)
    if options.storage is not None:
        cluster = replace(cluster, storage_bytes_per_s=storage_rate(options.storage))
    free_bytes = None if options.free_gib is None else options.free_gib * GIB
    terms = terms_of(options.profile)
    if options.runs:
        terms = anchored_by(options.runs, terms, model=weights.model, cluster=cluster, plan=plan)
    asked = weights.asked(cluster=cluster, workload=load, plan=plan, free_bytes=free_bytes, terms=terms)
    named = of_library(model, options.engine, options.models) if options.precision is None else None
    return asked if named is None else replace(asked, served_as=named)


def judged(question: Question[Serving, Plan]) -> Answer:
    """The answer to one question, with remedies where its plan does not start."""
    from trilemma.estimate.serving import estimate
    from trilemma.search.answer import with_remedies

    return Answer.of(with_remedies(estimate(question)))


def search(model: Any, gpu: Any, options: SimpleNamespace, *, workload: Serving | None) -> ServingPlans:
    """The best plans of all layouts, precisions and loads; the number of GPUs is searched too where ``gpu`` counts none."""
    from trilemma.ask.searched import ServingPlans
    from trilemma.estimate.pooling import check_generates
    from trilemma.search import Constraints, search_serving

    if not 1 <= options.top <= _MOST_SHOWN:
        raise InputError(f"`top` {options.top} is out of range; give 1 to {_MOST_SHOWN}")
    named = model_of(model, options.models)
    check_generates(named)
    free = not counts(gpu) and not options.nodes
    cluster = cluster_of(gpu, options)
    if free:
        cluster = _node_of(gpu, cluster, options)
    load, engine = workload or workload_of(options), engine_of(options.engine)
    fixed = Constraints(
        tp=options.tp, pp=options.pp, dp=options.dp, expert_parallel=options.ep,
        options=ServeOptions(**fields_of("engine", options)),
    )  # fmt: skip

    terms = terms_of(options.profile)
    # cards under a cap are timed in engines that prefill and decode
    pools: Any = "aggregated" if cluster.power_cap_w is not None and options.pools == "both" else options.pools

    def again(asked: Serving, front: int, *, assume: bool = False) -> SearchResult:
        return search_serving(
            named, cluster, asked, top=options.top, fixed=fixed, precision=options.precision, front=front,
            kv_dtype=options.kv_dtype, engine=engine, pools=pools, free=free, confidence=options.confidence,
            terms=terms, assume=assume,
        )  # fmt: skip

    result = again(load, options.front, assume=True)
    nearest = None
    if not result.plans:
        from trilemma.search.nearest import nearest_miss

        nearest = Answer.of(nearest_miss(named, cluster, load, fixed=fixed, engine=engine, terms=terms))
    return ServingPlans(
        model=named,
        cluster=cluster,
        result=result,
        plans=tuple(Answer.of(found.estimate) for found in result.plans),
        nearest=nearest,
        search=again,
        explanation=_explanation(cluster, result, terms),
    )


def side_by_side(
    model: Any, gpus: Sequence[Any], options: SimpleNamespace, *, workload: Serving | None
) -> CardsCompared:
    """Each of ``gpus`` with its best plan for one load."""
    from trilemma.ask.compared import CardsCompared
    from trilemma.estimate.pooling import check_generates
    from trilemma.search.compare import compare

    if len(gpus) > _MOST_CARDS:
        raise InputError(f"{len(gpus)} `gpu` are too many to compare; give at most {_MOST_CARDS}")
    named = model_of(model, options.models)
    check_generates(named)
    free = [not counts(gpu) and not options.nodes for gpu in gpus]
    clusters = [
        _node_of(gpu, cluster, options) if searched else cluster
        for gpu, searched, cluster in (
            (one, any_, cluster_of(one, options)) for one, any_ in zip(gpus, free, strict=True)
        )
    ]
    return CardsCompared.of(
        compare(
            named,
            clusters,
            workload or workload_of(options),
            free=free,
            precision=options.precision,
            kv_dtype=options.kv_dtype,
            engine=engine_of(options.engine),
        )
    )


def _node_of(gpu: Any, cluster: Cluster, options: SimpleNamespace) -> Cluster:
    """A node of such cards, the most that an engine is given before it spans several."""
    many = options.gpus_per_node or cluster.accelerator.gpus_per_node
    if isinstance(gpu, Accelerator):
        return replace(cluster, gpus=many, gpus_per_node=many)
    return cluster_of(f"{gpu}:{many}", options)


def _explanation(cluster: Cluster, result: SearchResult, terms: ServingTerms | None) -> tuple[str, ...]:
    from trilemma.engines import canonical
    from trilemma.timing import Machine, model_work, speed_explanation

    if not result.plans:
        return ()
    best = result.plans[0]
    work = model_work(best.precision.model, cluster.accelerator)
    engine = best.plan.engine
    machine = Machine.serving(cluster, work=work, engine=canonical(engine.name), version=engine.version, terms=terms)
    return speed_explanation(work, machine)
