"""Lines of memory at the worst moment of a step, for every stage of the plans that share a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.formats import catalogue
from trilemma.hardware.cluster import Cluster
from trilemma.memory.activations import Shards, expert_tp, layer_activations
from trilemma.memory.output_layer import final_norm_bytes, logits_bytes
from trilemma.memory.pipeline_stages import Stages, could_be_fullest, in_flight, place_layers
from trilemma.memory.training_buffers import (
    context_bytes,
    gathered_sequence,
    gathered_weights,
    reduced_gradients,
    whole_in_pipelines,
)
from trilemma.memory.training_model import TrainingModel
from trilemma.memory.training_state import QUANTITIES, RankState, cut_shares, rank_state, shard_groups, sharded
from trilemma.memory.traits import coefficients
from trilemma.memory.weights import shard_share
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

LINES = (
    "weights", "adapter", "gradients", "master_weights", "optimizer", "activations", "logits", "workspace", "communication",
    "context", "offload_buffers", "fragmentation",
)  # fmt: skip
_ALLOCATED = tuple(name for name in LINES if name not in ("context", "fragmentation"))
_GRADIENTS = QUANTITIES.index("gradients")
_STEP = ("activations", "logits", "workspace", "communication")

MomentTable = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Arrays (stages, plans): the lines at the worst moment, reserved bytes, micro-batches in flight, weights with gradients,
    optimizer state and activations each at its own peak, bytes while a checkpoint loads, host memory and traffic."""

    stages: Stages
    lines: Mapping[str, MomentTable]
    reserved: MomentTable
    in_flight: MomentTable
    categories: MomentTable
    resume: MomentTable
    host: MomentTable
    moved: Mapping[str, MomentTable]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTerms:
    """What depends on a plan but not on its pipeline: shares of each cut (cuts, plans), bytes that a layer of each kind
    keeps and makes again (kinds, plans), placeholder gradients (plans,)."""

    shares: MomentTable
    kept: MomentTable
    made: MomentTable
    placeholders: MomentTable

    def take(self, here: NDArray[Any]) -> RowTerms:
        """The terms of some rows."""
        return RowTerms(
            shares=self.shares[:, here], kept=self.kept[:, here], made=self.made[:, here],
            placeholders=self.placeholders[here],
        )  # fmt: skip


def row_terms(prepared: TrainingModel, plan: TrainingPlan, workload: TrainingWorkload) -> RowTerms:
    """Terms of all rows of ``plan``, whose numbers are arrays (plans,)."""
    shards = Shards.of(plan, workload)
    layers = [
        layer_activations(
            kind, prepared.traits, plan, shards, trained=prepared.trained, extra=extra,
            narrow_inputs=prepared.facts["narrow_inputs"],
        )
        for kind, extra in zip(prepared.kinds, prepared.adapter_saved, strict=True)
    ]  # fmt: skip
    shares = cut_shares(
        prepared.table, tp=np.asarray(plan.layout.tp), ep=np.asarray(plan.layout.ep), expert_tp=expert_tp(plan),
        vocab_multiple=prepared.facts["vocab_multiple"],
    )  # fmt: skip
    return RowTerms(
        shares=shares,
        kept=np.stack([one.kept for one in layers]),
        made=np.stack([one.again for one in layers]),
        placeholders=np.asarray(_placeholder_bytes(prepared, plan)),
    )


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
        prepared.table, counts=stages.counts, first=stages.first, last=stages.last, shares=terms.shares, mtp=plan.mtp
    )
    held = in_flight(
        plan.schedule, stage=stages.index[:, None], pp=pp, vpp=vpp, micro_batches=plan.micro_batches(workload)[None, :]
    ).astype(float)
    lines = _state_lines(state, plan, prepared)
    step = _step_terms(prepared, plan, workload, terms, stages, state, held)
    updated = sharded(state, "gradients", shard_groups(plan, expert_tp(plan)), shard=plan.zero >= 1)
    offload = _offload(prepared, plan, workload, lines, step, updated)
    categories = step.activations + sum(lines.values())
    lines, worst = _worst_moment(lines, step, prepared, plan, workload)
    lines["offload_buffers"] = offload.buffers
    inside = sum(lines[name] for name in _ALLOCATED)
    lines["fragmentation"] = _fragmentation(prepared, plan, lines, worst)
    lines["context"] = np.full_like(held, context_bytes(cluster))
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
    )


@lru_cache(maxsize=4096)
def _stages(
    order: tuple[int, ...], n_kinds: int, *, pp: int, vpp: int, schedule: str, sizes: tuple[int, ...] | None, mtp: int,
    every: bool,
) -> Stages:  # fmt: skip
    """Kept: a search asks again for each mode of recompute, ZeRO stage and recipe."""
    stages = place_layers(order, n_kinds, pp=pp, vpp=vpp, schedule=schedule, sizes=sizes, mtp=mtp)
    return stages if every else could_be_fullest(stages)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """Bytes (stages, plans) that live within a step: what all layers keep, what one of them makes again, the loss, what is
    gathered and reduced, placeholder gradients; the largest gradient, layer of weights and layer of activations alone.
    """

    activations: MomentTable
    again: MomentTable
    logits: MomentTable
    gathered: MomentTable
    reduced: MomentTable
    placeholders: MomentTable
    one_micro_batch: MomentTable
    one_gradient: MomentTable
    one_weights: MomentTable
    one_activations: MomentTable


def _step_terms(
    prepared: TrainingModel,
    plan: TrainingPlan,
    workload: TrainingWorkload,
    terms: RowTerms,
    stages: Stages,
    state: RankState,
    held: MomentTable,
) -> _Step:
    shards = Shards.of(plan, workload)
    facts = prepared.facts
    per_kind, made = terms.kept, terms.made
    layers = stages.counts @ per_kind
    if plan.mtp and prepared.model.mtp_layers:  # they look like the last decoder layer
        layers = layers + stages.last[:, None] * len(prepared.model.mtp_layers) * per_kind[prepared.order[-1]]
    if plan.recompute.mode == "full" and plan.recompute.layers is not None:
        layers = layers + _not_recomputed(stages, plan.recompute.layers) @ made
    present = stages.counts[:, :, None] > 0
    activation_bytes = catalogue.get(plan.recipe.activations).bits / 8
    hidden, vocab = prepared.model.hidden, prepared.model.vocab
    last, first = stages.last[:, None], stages.first[:, None]
    norm = final_norm_bytes(
        hidden, shards, written=prepared.traits.norm == "written", activation_bytes=activation_bytes
    )
    ids = 8 * np.asarray(shards.tokens)
    compiled = "compiled_logit_bytes" if plan.compiled else "logit_bytes"
    scale = activation_bytes / 2 if activation_bytes > 2 else 1.0
    logits = logits_bytes(
        vocab, hidden, shards, loss=plan.loss, chunks=plan.loss_chunks, per_logit=facts[compiled],
        kept_per_logit=facts["kept_per_logit"] * scale, vocab_multiple=facts["vocab_multiple"],
        trains_head=prepared.trained is None, per_chunk_logit=facts.get("chunk_logit_bytes"),
    )  # fmt: skip
    # A pipeline that runs all forward passes first computes every loss before the first backward pass.
    losses = held if plan.schedule == "gpipe" else np.ones_like(held)
    one = layers + first * ids + last * norm
    sequence = gathered_sequence(hidden, plan, shards, copies=facts.get("gathered_sequences", 1.0))
    return _Step(
        activations=layers * held + first * ids * held + last * norm * losses,
        again=np.where(present, made[None], 0.0).max(axis=1),
        logits=last * logits * losses * (1 + (len(prepared.model.mtp_layers) if plan.mtp else 0)),
        gathered=gathered_weights(state, plan, facts, first=stages.first, last=stages.last) + sequence,
        reduced=np.broadcast_to(reduced_gradients(state, plan, facts), held.shape),
        placeholders=np.broadcast_to(terms.placeholders, held.shape),
        one_micro_batch=one,
        one_gradient=np.maximum.reduce(
            [state.block[_GRADIENTS] + 0 * held, first * state.embedding[_GRADIENTS], last * state.head[_GRADIENTS]]
        ),
        one_weights=state.block[QUANTITIES.index("weights")] + 0 * held,
        one_activations=np.where(present, per_kind[None], 0.0).max(axis=1),
    )


def _not_recomputed(stages: Stages, layers: int) -> NDArray[Any]:
    """Layers of each kind beyond the first ``layers`` of a stage, which keep all their tensors."""
    total = stages.counts.sum(axis=1, keepdims=True)
    return np.asarray(stages.counts * np.maximum(total - layers, 0) / np.maximum(total, 1))


def _placeholder_bytes(prepared: TrainingModel, plan: TrainingPlan) -> Any:
    """One placeholder for every shape of a linear layer's weight, in the format of weights (plans,)."""
    tp = np.asarray(plan.layout.tp)
    total: Any = np.zeros(tp.shape)
    for shape in prepared.placeholders:
        cut = expert_tp(plan) if shape.expert else tp
        total = total + shard_share(shard=shape.shard, units=shape.units, experts=0, tp=np.asarray(cut)) * shape.bytes
    return total


def _worst_moment(
    lines: dict[str, MomentTable], step: _Step, prepared: TrainingModel, plan: TrainingPlan, workload: TrainingWorkload
) -> tuple[dict[str, MomentTable], MomentTable]:
    """Lines at the moment of the highest sum, and what blocks of other moments add where the allocator keeps them apart."""
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
         "workspace": step.placeholders},
        {"gradients": early, "activations": kept, "logits": zeros, "communication": step.gathered + step.reduced,
         "workspace": step.placeholders + step.again},
        {"gradients": gradients, "activations": zeros, "logits": zeros, "communication": step.gathered + step.reduced,
         "workspace": step.placeholders},
        {"gradients": gradients, "activations": zeros, "logits": zeros, "communication": zeros,
         "workspace": step.placeholders + temporaries},
    ]  # fmt: skip
    totals = np.stack([sum(one.values()) for one in candidates])
    worst = totals.argmax(axis=0)
    chosen = {name: np.choose(worst, [one[name] for one in candidates]) for name in ("gradients", *_STEP)}
    offload = plan.offload
    highest = {name: np.max(np.stack([one[name] for one in candidates]), axis=0) for name in chosen}
    apart = sum((highest[name] - chosen[name] for name in prepared.facts["apart"]), start=zeros)
    return (
        {
            **lines,
            **chosen,
            "weights": lines["weights"] * (1 - offload.weights),
            **{
                name: lines[name] * (1 - offload.optimizer * (name in prepared.facts["offload_moves"]))
                for name in ("master_weights", "optimizer")
            },
        },
        apart,
    )


def _fragmentation(
    prepared: TrainingModel, plan: TrainingPlan, lines: Mapping[str, MomentTable], apart: MomentTable
) -> MomentTable:
    """Reserved minus allocated: a share of what a step allocates and frees, a smaller one of what stays, and blocks of
    other moments of the step that do not serve this one."""
    share = prepared.facts["compiled_fragmentation" if plan.compiled else "fragmentation"]
    if plan.flat_parameters:
        share = share + prepared.facts["flat_fragmentation"]
    passing = sum(lines[name] for name in _STEP)
    staying = sum(lines[name] for name in ("weights", "gradients", "master_weights", "optimizer", "adapter"))
    return np.asarray(share * passing + prepared.facts["fragmentation_of_state"] * staying + apart)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offload:
    buffers: MomentTable
    host: MomentTable
    moved: Mapping[str, MomentTable]


def _offload(
    prepared: TrainingModel, plan: TrainingPlan, workload: TrainingWorkload, lines: Mapping[str, MomentTable], step: _Step,
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
    state = share.optimizer * (lines["optimizer"] + held_on_host + updated)
    weights = share.weights * lines["weights"]
    back = updated * catalogue.get(plan.recipe.weights).bits / gradients
    # What is on its way needs two places: one filling, one draining.
    buffers = 2 * (
        (share.activations > 0) * step.one_activations
        + (share.optimizer > 0) * ("gradients" in prepared.facts["offload_moves"]) * step.one_gradient
        + (share.weights > 0) * step.one_weights
    )
    return _Offload(
        buffers=buffers,
        host=saved + state + weights,
        moved={
            "activations": 2 * share.activations * step.one_micro_batch * batches,
            "optimizer": share.optimizer * (updated + back),
            "weights": 2 * weights * batches,
        }
        if share.any
        else {},
    )


def _resume_copies(plan: TrainingPlan) -> float:
    """Copies of optimizer state that loading a checkpoint makes on the device."""
    return float(coefficients()["resume"].get(plan.implementation, coefficients()["resume"]["default"]))
