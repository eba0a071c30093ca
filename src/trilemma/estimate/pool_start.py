"""How the engines of one pool start: layout and context checked, the engine's own budget applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trilemma import engines
from trilemma.engines import traits_of
from trilemma.engines.base import StartUp
from trilemma.engines.launch import config_overrides
from trilemma.engines.traits import check_encodes, check_vendor, those
from trilemma.errors import InputError
from trilemma.estimate.layouts import check_context, check_layout
from trilemma.hardware.cluster import Cluster
from trilemma.models.architecture import Model
from trilemma.plans import Pool
from trilemma.question import ServingQuestion
from trilemma.workloads import Serving


def with_context(pool: Pool, workload: Serving) -> Pool:
    """``pool`` that admits the longest request of ``workload``, where neither its options nor the workload say otherwise."""
    if pool.options.context is not None or workload.longest_request is None or not workload.shapes_plan:
        return pool
    return replace(pool, options=replace(pool.options, context=workload.longest_request))


def start_pool(pool: Pool, question: ServingQuestion) -> StartUp:
    """Start-up of one engine of ``pool``, a pool of the plan. Raises `InputError` for layouts and contexts that are refused."""
    model, cluster, engine = question.model, question.cluster, question.plan.engine
    check_layout(model, pool.layout)
    check_positions(model, pool, engine.name, longest=question.workload.least_request)
    named = engines.get(engine.name)
    check_kinds(named.name, cluster)
    check_encodes(engines.traits_of(named.name), model)
    return named.start_up(
        model=model,
        accelerator=cluster.accelerator,
        layout=pool.layout,
        options=pool.options,
        draft=pool.draft,
        version=engine.version,
        free_bytes=question.free_bytes,
        capacity_bytes=question.capacity_bytes,
        cards=cluster.cards,
    )


def check_kinds(engine: str, cluster: Cluster) -> None:
    """Refuses cards that ``engine`` does not run on, and cards of several kinds where it shares work out evenly."""
    traits = engines.traits_of(engine)
    for card in cluster.cards or (cluster.accelerator,):
        check_vendor(traits, card)
    if cluster.cards and not traits.mixed_cards:
        raise InputError(
            f"{engine} gives every card the same part of a model, and `gpu` names {cluster.name}; name cards of one kind,"
            f" or use {' or '.join(those('mixed_cards'))}"
        )


def check_positions(model: Model, pool: Pool, engine: str, *, longest: int | None = None) -> None:
    """Raise `InputError` where the context of ``pool`` is longer than the model's positions and ``engine`` would refuse it.

    An engine that starts all the same cuts requests there: then, and where nothing states the context, it is the ``longest``
    request that must fit.
    """
    traits = traits_of(engine)
    stated = None if traits.longer_contexts else pool.options.context
    context = longest if stated is None else stated
    allowed = str(pool.options.extra.get(traits.longer_contexts_by, "")).lower() in ("1", "true")
    check_context(model, context, rescaled=allowed or _rescaled(pool))


def _rescaled(pool: Pool) -> bool:
    """Whether the engine is told to stretch the model's positions, in the configuration or a section of it."""
    extra = pool.options.extra
    told = config_overrides(extra)
    sections = (told, *(section for section in told.values() if isinstance(section, Mapping)))
    words = ("rope_scaling", "rope_parameters", "max_position_embeddings")
    return "rope-scaling" in extra or any(word in section for section in sections for word in words)
