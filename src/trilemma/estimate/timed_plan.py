"""A plan of one pool as timing sees it: the work of its model, the machine under its engine, layout, cache format, drafts."""

from __future__ import annotations

from dataclasses import dataclass

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.errors import PlanWarning
from trilemma.estimate.number_formats import as_computed
from trilemma.formats import catalogue
from trilemma.formats.formats import Format
from trilemma.models.architecture import Model
from trilemma.plans import Layout, Plan
from trilemma.question import ServingQuestion
from trilemma.timing import Machine, model_work
from trilemma.timing.eras import backend_asked, works_ahead
from trilemma.timing.host_weights import split_work
from trilemma.timing.mixed_cards import work_of_cards
from trilemma.timing.operators import ModelWork
from trilemma.timing.speculation import Speculation


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedPlan:
    """What every question of seconds is asked with: ``model`` as it is computed, ``work`` on the cards and beside them."""

    model: Model
    work: ModelWork
    machine: Machine
    layout: Layout
    kv_format: Format
    speculation: Speculation | None
    warnings: tuple[PlanWarning, ...]


def timed_plan(start: StartUp, question: ServingQuestion) -> TimedPlan:
    """The plan of ``question``, of one pool, whose engine starts as ``start`` says."""
    cluster, plan = question.cluster, question.plan
    model = as_computed(question.model, plan.engine.name, plan.pool.options)
    traits, extra = engines.traits_of(plan.engine.name), plan.pool.options.extra
    machine = Machine.serving(
        cluster,
        work=model_work(model, cluster.accelerator),
        engine=engines.canonical(plan.engine.name),
        version=plan.engine.version,
        terms=question.terms,
        routes_tokens=traits.routes_tokens(extra),
        ahead=works_ahead(engines.canonical(plan.engine.name), plan.engine.version, extra),
        eager=plan.pool.options.eager,
        sampling=question.workload.sampling,
        spilled=start.on_host is not None,
        backend=backend_asked(extra),
    ).as_asked(graph_sizes=plan.pool.options.cuda_graph_sizes, micro_batch=plan.pool.options.max_batched_tokens)
    work = split_work(model, cluster.accelerator, start.on_host)
    if cluster.cards:
        work = work_of_cards(
            model,
            cluster,
            start.on_cards,
            start.on_host,
            engine=machine.engine,
            version=plan.engine.version,
            terms=machine.terms,
        )
    speculation, warnings = speculation_of(plan)
    return TimedPlan(
        model=model,
        work=work,
        machine=machine,
        layout=plan.pool.layout,
        kv_format=catalogue.get(start.kv_format),
        speculation=speculation,
        warnings=warnings,
    )


def speculation_of(plan: Plan) -> tuple[Speculation | None, tuple[PlanWarning, ...]]:
    """Drafts speed a plan up by their acceptance, which is measured on the user's own text and never guessed."""
    draft = plan.pool.draft
    if draft is None:
        return None, ()
    if draft.acceptance is None:
        message = f"speed is without the {draft.method} drafts: their acceptance is not stated"
        return None, (PlanWarning(code="draft-acceptance", message=message),)
    return Speculation(drafted=draft.tokens, acceptance=draft.acceptance), ()
