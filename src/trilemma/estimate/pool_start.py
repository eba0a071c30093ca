"""How the engines of one pool start: layout and context checked, the engine's own budget applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trilemma import engines
from trilemma.engines.base import StartUp
from trilemma.engines.traits import check_encodes, check_vendor, those
from trilemma.errors import InputError
from trilemma.estimate.layouts import check_context, check_layout
from trilemma.hardware.cluster import Cluster
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
    check_context(model, pool.options.context, rescaled=rescaled(pool))
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


def rescaled(pool: Pool) -> bool:
    """Whether the engine is told to stretch the model's positions."""
    overrides = pool.options.extra.get("hf-overrides")
    told = overrides if isinstance(overrides, Mapping) else {}
    return "rope-scaling" in pool.options.extra or any(
        name in told for name in ("rope_scaling", "rope_parameters", "max_position_embeddings")
    )
