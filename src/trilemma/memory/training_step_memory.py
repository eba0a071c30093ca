"""What one step of a training holds beside its state, moment by moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilemma.formats import catalogue
from trilemma.memory.activations import Shards
from trilemma.memory.autocast import weight_casts
from trilemma.memory.output_layer import final_norm_bytes, logits_bytes
from trilemma.memory.pipeline_stages import Stages
from trilemma.memory.row_terms import MomentTable, RowTerms
from trilemma.memory.training_buffers import (
    gathered_sequence,
    gathered_weights,
    reduced_gradients,
)
from trilemma.memory.training_model import TrainingModel
from trilemma.memory.training_state import QUANTITIES, RankState
from trilemma.plans.training import TrainingPlan
from trilemma.workloads import TrainingWorkload

_GRADIENTS = QUANTITIES.index("gradients")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTerms:
    """Bytes (stages, plans) that live within a step: what all layers keep, what one of them makes again, the loss, what is
    gathered and reduced, placeholder gradients, 16-bit copies of FP32 weights; the largest
    gradient, layer of weights and layer of activations alone.
    """

    activations: MomentTable
    again: MomentTable
    logits: MomentTable
    gathered: MomentTable
    reduced: MomentTable
    placeholders: MomentTable
    casts_at_loss: MomentTable
    casts_in_backward: MomentTable
    one_micro_batch: MomentTable
    one_gradient: MomentTable
    one_weights: MomentTable
    one_activations: MomentTable


def step_terms(
    prepared: TrainingModel,
    plan: TrainingPlan,
    workload: TrainingWorkload,
    terms: RowTerms,
    stages: Stages,
    state: RankState,
    held: MomentTable,
) -> StepTerms:
    """Bytes of the step's own lines, arrays (stages, plans). Source: Megatron-LM, what its layers save and gather."""
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
    if plan.loss == "compiled" and "native_logit_bytes" in facts:
        compiled = "native_logit_bytes"
    scale = activation_bytes / 2 if activation_bytes > 2 else 1.0
    logits = logits_bytes(
        vocab, hidden, shards, loss=plan.loss, chunks=plan.loss_chunks, per_logit=facts[compiled],
        kept_per_logit=facts["kept_per_logit"] * scale, vocab_multiple=facts["vocab_multiple"],
        trains_head=prepared.trained is None, per_chunk_logit=facts.get("chunk_logit_bytes"),
        tile=plan.loss_tile,
    )  # fmt: skip
    # A pipeline that runs all forward passes first computes every loss before the first backward pass.
    losses = held if plan.schedule == "gpipe" else np.ones_like(held)
    one = layers + first * ids + last * norm
    at_loss, in_backward = weight_casts(
        state, plan, workload, first=first, last=last, tied=prepared.model.tied_embeddings
    )  # fmt: skip
    sequence = gathered_sequence(hidden, plan, shards, copies=facts.get("gathered_sequences", 1.0))
    return StepTerms(
        activations=layers * held + first * ids * held + last * norm * losses,
        again=np.where(present, made[None], 0.0).max(axis=1),
        logits=last * logits * losses * (1 + (len(prepared.model.mtp_layers) if plan.mtp else 0)),
        gathered=gathered_weights(state, plan, facts, first=stages.first, last=stages.last) + sequence,
        reduced=np.broadcast_to(reduced_gradients(state, plan, facts), held.shape),
        placeholders=np.broadcast_to(terms.placeholders, held.shape),
        casts_at_loss=at_loss + 0 * held,
        casts_in_backward=in_backward + 0 * held,
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
