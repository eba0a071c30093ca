"""Lines of memory at the worst moment of a step, for every stage of the plans that share a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trilemma.formats import catalogue
from trilemma.hardware.cluster import Cluster
from trilemma.memory.activations import expert_tp
from trilemma.memory.pipeline_stages import Stages, could_be_fullest, in_flight, place_layers
from trilemma.memory.row_terms import MomentTable, RowTerms
from trilemma.memory.training_buffers import (
    context_bytes,
    libraries_bytes,
    replica_buckets,
    stepped_gradients,
    whole_in_pipelines,
)
from trilemma.memory.training_model import TrainingModel
from trilemma.memory.training_state import RankState, rank_state, shard_groups, sharded
from trilemma.memory.training_step_memory import StepTerms, step_terms
from trilemma.memory.traits import coefficients
from trilemma.memory.uncounted import looped_step
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

LINES = (
    "weights", "adapter", "gradients", "master_weights", "optimizer", "activations", "logits", "workspace", "communication",
    "libraries", "context", "offload_buffers", "fragmentation",
)  # fmt: skip
_ALLOCATED = tuple(name for name in LINES if name not in ("context", "fragmentation"))
_STATE = ("master_weights", "optimizer")
#: Part of a card that an allocator fills with blocks that it may give back.
_FILLED = 0.98
_STEP = ("activations", "logits", "workspace", "communication")


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Arrays (stages, plans): the lines at the worst moment, reserved bytes, micro-batches in flight, weights with gradients,
    optimizer state and activations each at its own peak, bytes while a checkpoint loads, host memory and traffic; ``apart``:
    blocks of other moments that may serve no request of the worst one; ``cached``: those that serve none and that the allocator
    keeps because the card has room."""

    stages: Stages
    lines: Mapping[str, MomentTable]
    reserved: MomentTable
    in_flight: MomentTable
    categories: MomentTable
    resume: MomentTable
    host: MomentTable
    moved: Mapping[str, MomentTable]
    apart: MomentTable
    cached: MomentTable


def moments(
    prepared: TrainingModel, plan: TrainingPlan, workload: TrainingWorkload, cluster: Cluster, terms: RowTerms, *, pp: int,
    vpp: int, every: bool,
) -> Moments:  # fmt: skip
    """``plan`` has scalar ``pp`` and ``vpp`` and arrays (plans,) elsewhere; ``every`` keeps stages that cannot be fullest."""
    stages = _stages(
        prepared.order, len(prepared.kinds), pp=pp, vpp=vpp, schedule=plan.schedule, sizes=plan.pipeline_layers,
        mtp=len(prepared.model.mtp_layers) if plan.mtp else 0, every=every,
    )  # fmt: skip
    state = rank_state(
        prepared.table, counts=stages.counts, first=stages.first, last=stages.last, terms=terms.cuts, mtp=plan.mtp
    )
    held = in_flight(
        plan.schedule, stage=stages.index[:, None], pp=pp, vpp=vpp, micro_batches=plan.micro_batches(workload)[None, :]
    ).astype(float)
    lines = _state_lines(state, plan, prepared)
    step = step_terms(prepared, plan, workload, terms, stages, state, held)
    updated = sharded(state, "gradients", shard_groups(plan, expert_tp(plan)), shard=plan.zero >= 1)
    offload = _offload(prepared, plan, workload, lines, step, updated)
    categories = step.activations + sum(lines.values())
    lines, worst, perhaps = _worst_moment(
        lines, step, prepared, plan, workload, _stepped(updated, plan, prepared, cluster)
    )
    lines["libraries"] = np.full_like(held, libraries_bytes(cluster, prepared.facts))
    lines["offload_buffers"] = offload.buffers
    lines["context"] = np.full_like(held, context_bytes(cluster))
    lost = _fragmentation(prepared, plan, lines)
    # They are allocated once and never freed: no share of them is lost.
    ranks = np.asarray(plan.layout.dp) * plan.layout.cp
    lines["communication"] = lines["communication"] + replica_buckets(state, plan, prepared.facts, ranks)
    inside = sum(lines[name] for name in _ALLOCATED)
    cached = _cached(worst, inside + lost + lines["context"], cluster)
    lines["fragmentation"] = lost + cached
    resume = lines["weights"] + lines["master_weights"] + lines["optimizer"] + lines["adapter"]
    return Moments(
        stages=stages,
        lines=lines,
        reserved=inside + lines["fragmentation"],
        in_flight=held,
        categories=np.asarray(categories),
        resume=resume + _resume_copies(plan) * (lines["master_weights"] + lines["optimizer"]),
        host=offload.host,
        moved=offload.moved,
        apart=perhaps,
        cached=cached,
    )


@lru_cache(maxsize=4096)
def _stages(
    order: tuple[int, ...], n_kinds: int, *, pp: int, vpp: int, schedule: str, sizes: tuple[int, ...] | None, mtp: int,
    every: bool,
) -> Stages:  # fmt: skip
    """Kept: a search asks again for each mode of recompute, ZeRO stage and recipe."""
    stages = place_layers(order, n_kinds, pp=pp, vpp=vpp, schedule=schedule, sizes=sizes, mtp=mtp)
    return stages if every else could_be_fullest(stages)


def _stepped(updated: MomentTable, plan: TrainingPlan, prepared: TrainingModel, cluster: Cluster) -> MomentTable:
    """What an optimizer step makes beside its state."""
    copies = stepped_gradients(updated, plan, prepared.facts)
    frozen = prepared.costs.frozen_format is not None
    trained = [one for one in prepared.tensors if not frozen or one.role == "adapter"]
    looped = looped_step(plan, trained, prepared.facts) if cluster.accelerator.vendor == "CPU" else 0.0
    return np.asarray(copies + looped)


def _state_lines(state: RankState, plan: TrainingPlan, prepared: TrainingModel) -> dict[str, MomentTable]:
    """Lines of state, each divided by its data-parallel group from the ZeRO stage on that shards it."""
    whole = whole_in_pipelines(plan, prepared.facts)
    groups = shard_groups(plan, expert_tp(plan))
    weights = sharded(state, "weights", groups, shard=plan.zero >= 3) + sharded(state, "copies", groups, shard=False)
    return {
        "weights": weights,
        "adapter": sharded(state, "adapter", groups, shard=plan.zero >= 3),
        "gradients": sharded(state, "gradients", groups, shard=plan.zero >= 2 and not whole),
        "master_weights": sharded(state, "master", groups, shard=plan.zero >= 1),
        "optimizer": sharded(state, "optimizer", groups, shard=plan.zero >= 1),
    }


def _worst_moment(
    lines: dict[str, MomentTable],
    step: StepTerms,
    prepared: TrainingModel,
    plan: TrainingPlan,
    workload: TrainingWorkload,
    stepped: MomentTable,
) -> tuple[dict[str, MomentTable], MomentTable, MomentTable]:
    """Lines at the moment of the highest sum, and what blocks of other moments add where they are kept apart, or may be."""
    zeros = np.zeros_like(step.activations)
    gradients = lines["gradients"]
    several = np.broadcast_to(plan.micro_batches(workload)[None, :] > 1, zeros.shape)
    persistent = np.ones_like(several) if prepared.facts["persistent_gradients"] else several
    if plan.optimizer_in_backward:
        # Each gradient is applied and freed as it comes: the most that lives is that of one layer, or of an end.
        persistent, gradients = np.zeros_like(several), np.minimum(gradients, step.one_gradient)
    # A host that updates weights takes gradients as they come (ZeRO-Offload, Ren et al. 2021), or copies them in the step
    # (Megatron-LM optimizer/cpu_offloading/hybrid_optimizer.py).
    away = plan.offload.optimizer if "gradients" in prepared.facts["offload_moves"] else 0.0
    gradients = gradients * (1 - away) + away * np.minimum(gradients, step.one_gradient)
    early = np.where(persistent, gradients, 0.0)
    kept = step.activations * (1 - plan.offload.activations)
    temporaries = plan.optimizer.step_copies * lines["master_weights"]
    candidates = [
        {"gradients": early, "activations": kept, "logits": step.logits, "communication": step.gathered,
         "workspace": step.placeholders + step.casts_at_loss},
        {"gradients": early, "activations": kept, "logits": zeros, "communication": step.gathered + step.reduced,
         "workspace": step.placeholders + step.again + step.casts_in_backward},
        {"gradients": gradients, "activations": zeros, "logits": zeros, "communication": step.gathered + step.reduced,
         "workspace": step.placeholders},
        {"gradients": gradients, "activations": zeros, "logits": zeros, "communication": zeros,
         "workspace": step.placeholders + temporaries + stepped},
    ]  # fmt: skip
    totals = np.stack([sum(one.values()) for one in candidates])
    worst = totals.argmax(axis=0)
    chosen = {name: np.choose(worst, [one[name] for one in candidates]) for name in ("gradients", *_STEP)}
    offload = plan.offload
    moved = {name: offload.optimizer * (name in prepared.facts["offload_moves"]) for name in _STATE}
    moved["master_weights"] = max(moved["master_weights"], offload.masters)
    moved["optimizer"] = max(moved["optimizer"], offload.moments)
    highest = {name: np.max(np.stack([one[name] for one in candidates]), axis=0) for name in chosen}
    apart, perhaps = (
        sum((highest[name] - chosen[name] for name in prepared.facts.get(key, ())), start=zeros)
        for key in ("apart", "perhaps_apart")
    )
    return (
        {
            **lines,
            **chosen,
            "weights": lines["weights"] * (1 - offload.weights),
            **{name: lines[name] * (1 - moved[name]) for name in _STATE},
        },
        apart,
        perhaps,
    )


def _cached(apart: MomentTable, needed: MomentTable, cluster: Cluster) -> MomentTable:
    """Blocks of other moments of a step that serve no request of the worst one stay reserved as far as the card has room: where a
    request finds none, free blocks are given back before it fails.

    Source: c10/cuda/CUDACachingAllocator.cpp, malloc: release_cached_blocks and a second alloc_block.
    """
    room = _FILLED * cluster.accelerator.runtime_total().value - needed
    return np.clip(room, 0.0, apart)


def _fragmentation(prepared: TrainingModel, plan: TrainingPlan, lines: Mapping[str, MomentTable]) -> MomentTable:
    """What reserved memory loses: a share of what a step allocates and frees, a smaller one of what stays."""
    share = prepared.facts["compiled_fragmentation" if plan.compiled else "fragmentation"]
    if plan.flat_parameters:
        share = share + prepared.facts["flat_fragmentation"]
    passing = sum(lines[name] for name in _STEP)
    staying = sum(lines[name] for name in ("weights", "gradients", "master_weights", "optimizer", "adapter"))
    return np.asarray(share * passing + prepared.facts["fragmentation_of_state"] * staying)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offload:
    buffers: MomentTable
    host: MomentTable
    moved: Mapping[str, MomentTable]


def _offload(
    prepared: TrainingModel, plan: TrainingPlan, workload: TrainingWorkload, lines: Mapping[str, MomentTable], step: StepTerms,
    updated: MomentTable,
) -> _Offload:  # fmt: skip
    """Host memory, bytes over the host link in one optimizer step and the buffers that carry them.

    Activations go out and come back once a micro-batch; of optimizer state, gradients go out and updated weights come back
    (the update runs on the host, ZeRO-Offload: Ren et al. 2021, section 4); weights come in for forward and for backward.
    The host holds moments, FP32 weights and gradients of what it updates, whichever of them the card holds too.
    ``updated``: bytes of gradients of the weights that this rank updates.
    """
    share = plan.offload
    batches = plan.micro_batches(workload)[None, :]
    saved = share.activations * step.activations
    gradients = catalogue.get(plan.recipe.gradients).bits
    # Weights that the optimizer updates themselves are counted where they lie on the host anyway.
    alone = 1.0 if plan.recipe.master else 1.0 - share.weights
    held_on_host = alone * updated * catalogue.get(plan.recipe.master or plan.recipe.weights).bits / gradients
    # The processor updates from FP32 gradients: beside the partition's own where a framework accumulates narrower ones.
    again = 32 / gradients if prepared.facts.get("host_gradients_in_fp32", False) and gradients < 32 else 0.0
    state = share.optimizer * (lines["optimizer"] + held_on_host + updated * (1 + again))
    paged = share.moments * lines["optimizer"]
    weights = share.weights * lines["weights"]
    back = updated * catalogue.get(plan.recipe.weights).bits / gradients
    # What is on its way needs two places: one filling, one draining. Sharded state travels as shards (DeepSpeed
    # partition_parameters.py, FSDP2): layers are gathered on the card, in the line of communication.
    ranks = shard_groups(plan, expert_tp(plan))[0]
    buffers = 2 * (
        (share.activations > 0) * step.one_activations
        + (share.optimizer > 0) * ("gradients" in prepared.facts["offload_moves"]) * step.one_gradient
        / (ranks if plan.zero >= 2 else 1)
        + (share.weights > 0) * step.one_weights / (ranks if plan.zero >= 3 else 1)
    )  # fmt: skip
    return _Offload(
        buffers=buffers,
        host=saved + state + weights + paged,
        moved={
            "activations": 2 * share.activations * step.one_micro_batch * batches,
            "optimizer": share.optimizer * (updated + back) + 2 * paged,
            "weights": 2 * weights * batches,
        }
        if share.any
        else {},
    )


def _resume_copies(plan: TrainingPlan) -> float:
    """Copies of optimizer state that loading a checkpoint makes on the device."""
    return float(coefficients()["resume"].get(plan.implementation, coefficients()["resume"]["default"]))
